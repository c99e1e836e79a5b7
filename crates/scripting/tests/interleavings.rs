//! A model of the locks that scripts take, and all interleavings of a few threads: no thread waits forever, and no two
//! scripts overlap that must not. The crate's documentation describes the protocol.

use std::collections::HashSet;

const PARTITIONS: usize = 2;

/// A step of a thread. Steps that wait are not enabled until they can be taken.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Locks a partition, or goes to a step if it is taken.
    TryLock(usize, usize),
    /// Waits for a partition while holding others, and locks it.
    Lock(usize),
    Unlock(usize),
    /// Waits until a partition is free, without locking it.
    AwaitFree(usize),
    /// Sets the flag of a worker.
    Enter(usize),
    Leave(usize),
    /// Goes to a step if the gate is closed.
    IfClosed(usize),
    Close,
    Open,
    /// Waits until all flags are clear.
    AwaitQuiet,
    TakeTurn,
    ShareTurn,
    DropTurn,
    Begin(Kind),
    End(Kind),
    Goto(usize),
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Confined,
    Alone,
    /// A command that waits for partitions in its batch.
    Scan,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    /// The next step of each thread.
    at: Vec<usize>,
    owners: [Option<usize>; PARTITIONS],
    turn: Option<usize>,
    sharing: usize,
    closed: usize,
    flags: Vec<bool>,
    /// Scripts that run, by kind.
    running: [usize; 3],
}

/// The program of a thread.
#[derive(Default)]
struct Program(Vec<Step>);

impl Program {
    fn push(&mut self, step: Step) -> &mut Self {
        self.0.push(step);
        self
    }

    /// Locks partitions as commands do: if one is taken, releases the others, waits for it, and retries.
    fn lock_all(&mut self, partitions: &[usize]) -> &mut Self {
        let start = self.0.len();
        for (number, partition) in partitions.iter().enumerate() {
            // Behind this step: a jump over the retry, the retry.
            let retry = self.0.len() + 2;
            self.push(Step::TryLock(*partition, retry)).push(Step::Goto(retry + number + 2));
            partitions[..number].iter().for_each(|held| _ = self.push(Step::Unlock(*held)));
            self.push(Step::AwaitFree(*partition)).push(Step::Goto(start));
        }
        self
    }

    fn unlock_all(&mut self, partitions: &[usize]) -> &mut Self {
        partitions.iter().for_each(|partition| _ = self.push(Step::Unlock(*partition)));
        self
    }

    /// A script that runs alone, and takes more locks while it runs.
    fn alone(&mut self, partitions: &[usize], more: &[usize]) -> &mut Self {
        self.push(Step::TakeTurn).push(Step::Close).push(Step::AwaitQuiet).lock_all(partitions);
        self.push(Step::Begin(Kind::Alone));
        more.iter().for_each(|partition| _ = self.push(Step::Lock(*partition)));
        self.push(Step::End(Kind::Alone)).unlock_all(partitions).unlock_all(more);
        self.push(Step::Open).push(Step::DropTurn)
    }

    /// A confined script. If it finds the gate closed, it waits for others, tries again, and then runs alone. With
    /// `more`, it is given up when it reaches for that.
    fn confined(worker: usize, partitions: &[usize], more: &[usize]) -> Program {
        let mut program = Program::default();
        let first = program.enter(worker, partitions);
        program.run_confined(worker, partitions, more);
        program.after_closed(first, worker, partitions);
        program.push(Step::ShareTurn);
        let second = program.enter(worker, partitions);
        program.push(Step::DropTurn).run_confined(worker, partitions, more);
        program.after_closed(second, worker, partitions);
        program.push(Step::DropTurn).alone(partitions, more).push(Step::Stop);
        program
    }

    /// Takes the locks, and enters the gate. Returns the step to complete for a closed gate.
    fn enter(&mut self, worker: usize, partitions: &[usize]) -> usize {
        self.lock_all(partitions).push(Step::Enter(worker));
        self.push(Step::IfClosed(0));
        self.0.len() - 1
    }

    /// Runs to the end of the thread.
    fn run_confined(&mut self, worker: usize, partitions: &[usize], more: &[usize]) {
        self.push(Step::Begin(Kind::Confined)).push(Step::End(Kind::Confined));
        self.unlock_all(partitions).push(Step::Leave(worker));
        if !more.is_empty() {
            self.alone(partitions, more);
        }
        self.push(Step::Stop);
    }

    /// Continues after the gate was closed.
    fn after_closed(&mut self, check: usize, worker: usize, partitions: &[usize]) {
        self.0[check] = Step::IfClosed(self.0.len());
        self.unlock_all(partitions).push(Step::Leave(worker));
    }

    fn of_alone(partitions: &[usize], more: &[usize]) -> Program {
        let mut program = Program::default();
        program.alone(partitions, more).push(Step::Stop);
        program
    }

    fn of_command(partitions: &[usize]) -> Program {
        let mut program = Program::default();
        program.lock_all(partitions).unlock_all(partitions).push(Step::Stop);
        program
    }

    fn of_scan() -> Program {
        let mut program = Program::default();
        program.push(Step::ShareTurn).push(Step::Close).push(Step::AwaitQuiet).push(Step::Begin(Kind::Scan));
        (0..PARTITIONS).for_each(|partition| _ = program.push(Step::Lock(partition)).push(Step::Unlock(partition)));
        program.push(Step::End(Kind::Scan)).push(Step::Open).push(Step::DropTurn).push(Step::Stop);
        program
    }
}

/// Takes the next step of a thread; `None` if it has to wait or has ended.
fn step(programs: &[Program], state: &State, thread: usize) -> Option<State> {
    let mut next = state.clone();
    next.at[thread] += 1;
    match programs[thread].0[state.at[thread]] {
        Step::TryLock(partition, _) if state.owners[partition].is_none() => next.owners[partition] = Some(thread),
        Step::TryLock(_, taken) => next.at[thread] = taken,
        Step::Lock(partition) if state.owners[partition].is_none() => next.owners[partition] = Some(thread),
        Step::Unlock(partition) => {
            assert_eq!(next.owners[partition].take(), Some(thread));
        }
        Step::AwaitFree(partition) if state.owners[partition].is_none() => {}
        Step::Enter(worker) => next.flags[worker] = true,
        Step::Leave(worker) => next.flags[worker] = false,
        Step::IfClosed(target) if state.closed > 0 => next.at[thread] = target,
        Step::IfClosed(_) => {}
        Step::Close => next.closed += 1,
        Step::Open => next.closed -= 1,
        Step::AwaitQuiet if state.flags.iter().all(|flag| !flag) => {}
        Step::TakeTurn if state.turn.is_none() && state.sharing == 0 => next.turn = Some(thread),
        Step::ShareTurn if state.turn.is_none() => next.sharing += 1,
        Step::DropTurn if state.turn == Some(thread) => next.turn = None,
        Step::DropTurn => next.sharing -= 1,
        Step::Begin(kind) => next.running[kind as usize] += 1,
        Step::End(kind) => next.running[kind as usize] -= 1,
        Step::Goto(target) => next.at[thread] = target,
        Step::Lock(_) | Step::AwaitFree(_) | Step::AwaitQuiet | Step::TakeTurn | Step::ShareTurn | Step::Stop => {
            return None;
        }
    }
    Some(next)
}

/// Visits all states that threads with these programs can reach. Returns their number.
fn explore(programs: &[Program]) -> usize {
    let start = State { at: vec![0; programs.len()], flags: vec![false; programs.len()], ..State::default() };
    let (mut seen, mut waiting) = (HashSet::from([start.clone()]), vec![start]);
    let mut ended = false;
    while let Some(state) = waiting.pop() {
        let [confined, alone, scans] = state.running;
        assert!(alone <= 1 && (alone == 0 || confined + scans == 0), "scripts overlap: {state:?}");
        assert!(scans == 0 || confined == 0, "a script overlaps a scan: {state:?}");
        let nexts: Vec<_> = (0..programs.len()).filter_map(|thread| step(programs, &state, thread)).collect();
        if nexts.is_empty() {
            let stopped = |(thread, at): (usize, &usize)| matches!(programs[thread].0[*at], Step::Stop);
            assert!(state.at.iter().enumerate().all(stopped), "deadlock: {state:?}");
            ended = true;
        }
        waiting.extend(nexts.into_iter().filter(|next| seen.insert(next.clone())));
    }
    assert!(ended);
    seen.len()
}

#[test]
fn confined_scripts_and_scripts_alone_do_not_deadlock() {
    let states = explore(&[
        Program::confined(0, &[0, 1], &[]),
        Program::confined(1, &[1], &[]),
        Program::of_alone(&[0], &[1]),
        Program::of_alone(&[1], &[0]),
    ]);
    assert!(states > 1_000, "{states}");
}

#[test]
fn scripts_that_are_given_up_do_not_deadlock() {
    let states = explore(&[
        Program::confined(0, &[0], &[1]),
        Program::confined(1, &[1], &[0]),
        Program::confined(2, &[0, 1], &[]),
        Program::of_command(&[0, 1]),
    ]);
    assert!(states > 1_000, "{states}");
}

#[test]
fn commands_that_wait_in_their_batch_do_not_deadlock() {
    let states = explore(&[
        Program::of_scan(),
        Program::confined(0, &[0, 1], &[]),
        Program::confined(1, &[1], &[0]),
        Program::of_alone(&[0], &[1]),
    ]);
    assert!(states > 1_000, "{states}");
    explore(&[Program::of_scan(), Program::of_scan(), Program::confined(0, &[0], &[]), Program::of_alone(&[1], &[0])]);
}

#[test]
fn confined_scripts_overlap() {
    let programs = [Program::confined(0, &[0], &[]), Program::confined(1, &[1], &[])];
    let mut state = State { at: vec![0; 2], flags: vec![false; 2], ..State::default() };
    for thread in 0..2 {
        while state.running[0] <= thread {
            state = step(&programs, &state, thread).expect("nothing to wait for");
        }
    }
    assert_eq!(state.running, [2, 0, 0]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_finds_deadlocks() {
    // Two scripts that take further locks without the turn.
    let roaming = |own, more| {
        let mut program = Program::default();
        program.push(Step::Lock(own)).push(Step::Lock(more)).push(Step::Unlock(more)).push(Step::Unlock(own));
        program.push(Step::Stop);
        program
    };
    explore(&[roaming(0, 1), roaming(1, 0)]);
}
