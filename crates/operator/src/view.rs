//! What the operator shows: tables on a terminal, or lines.

use crate::run::{Event, Picture, migration_rows, shard_rows};
use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Observations in the history.
const HISTORY: usize = 300;
/// Time between two lines about the state, if nothing happens.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Shows the cluster.
pub trait View {
    /// Shows it, and then waits for this time. Returns whether to go on.
    ///
    /// # Errors
    /// If the output cannot be written.
    fn show(&mut self, picture: &Picture, wait: Duration) -> io::Result<bool>;
}

/// Lines on standard output: what happened, and the state from time to time.
#[derive(Default)]
pub struct Lines {
    /// The time of the last event that was written, and how often it had been repeated.
    written: Option<(f64, u32)>,
    status_at: Option<Instant>,
}

impl View for Lines {
    fn show(&mut self, picture: &Picture, wait: Duration) -> io::Result<bool> {
        let mut out = io::stdout().lock();
        let is_new = |event: &&Event| self.written.is_none_or(|(at_s, _)| event.at_s > at_s);
        for event in picture.events.iter().filter(is_new) {
            writeln!(out, "{:>8.1} s  {}", event.at_s, event.text)?;
        }
        self.written = picture.events.last().map(|event| (event.at_s, event.repeated)).or(self.written);
        if self.status_at.is_none_or(|then| then.elapsed() >= STATUS_EVERY) {
            self.status_at = Some(Instant::now());
            writeln!(out, "{}", status(picture))?;
        }
        out.flush()?;
        drop(out);
        std::thread::sleep(wait);
        Ok(true)
    }
}

/// The state in one line.
fn status(picture: &Picture) -> String {
    let rows = shard_rows(picture);
    let shards: Vec<String> = rows
        .iter()
        .map(|[shard, _, condition, slots, busy, commands, memory, ping, replicas]| {
            format!(
                "shard {shard} {condition}: {slots} slots, {busy} workers busy, {commands} commands/s, {memory} MB, \
                 ping {ping} ms, {replicas} replicas"
            )
        })
        .collect();
    let migrations = migration_rows(picture).len();
    format!("{} shards, {migrations} migrations | {}", rows.len(), shards.join(" | "))
}

/// Tables and charts that are drawn anew each time.
pub struct Screen {
    terminal: DefaultTerminal,
    commands_s: VecDeque<u64>,
    busy_percent: VecDeque<u64>,
    ping_us: VecDeque<u64>,
}

impl Screen {
    /// Takes the terminal, until dropped.
    ///
    /// # Errors
    /// If standard output is not a terminal.
    pub fn new() -> io::Result<Screen> {
        let terminal = ratatui::try_init()?;
        let empty = VecDeque::new;
        Ok(Screen { terminal, commands_s: empty(), busy_percent: empty(), ping_us: empty() })
    }

    fn note(&mut self, picture: &Picture) {
        let loads = || picture.state.answering().map(|(_, facts)| &facts.load);
        let (busy, workers) = loads().fold((0.0, 0), |(b, w), load| (b + load.busy_cores, w + load.workers));
        let ping_ms = loads().map(|load| load.ping_ms).fold(0.0, f64::max);
        for (history, value) in [
            (&mut self.commands_s, loads().map(|load| load.commands_s).sum::<f64>()),
            (&mut self.busy_percent, 100.0 * busy / f64::from(workers.max(1))),
            (&mut self.ping_us, ping_ms * 1e3),
        ] {
            history.push_back(value as u64);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl View for Screen {
    fn show(&mut self, picture: &Picture, wait: Duration) -> io::Result<bool> {
        self.note(picture);
        let until = Instant::now() + wait;
        loop {
            let Screen { terminal, commands_s, busy_percent, ping_us } = self;
            terminal.draw(|frame| draw(frame, picture, [&*commands_s, &*busy_percent, &*ping_us]))?;
            if !event::poll(until.saturating_duration_since(Instant::now()))? {
                return Ok(true);
            }
            // Any other event, such as a new size, draws once more.
            if let Input::Key(key) = event::read()? {
                let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if key.code == KeyCode::Char('q') || is_interrupt {
                    return Ok(false);
                }
            }
        }
    }
}

fn draw(frame: &mut Frame, picture: &Picture, histories: [&VecDeque<u64>; 3]) {
    let shards = shard_rows(picture);
    let migrations = migration_rows(picture);
    let height = |rows: usize, most: u16| (rows as u16).clamp(1, most) + 2;
    let [title, charts, table, moves, log] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(6),
        Constraint::Length(height(shards.len() + 1, 20)),
        Constraint::Length(height(migrations.len(), 8)),
        Constraint::Min(4),
    ])
    .areas(frame.area());
    let figures = picture.plan.figures;
    let text = format!(
        " kvick-operator   {} shards, {} needed   {:.2} cores busy, {:.2} in {:.0} s   q: quit, the servers go on",
        shards.len(),
        figures.shards_needed,
        figures.busy_cores,
        figures.forecast_cores,
        figures.lead_s
    );
    frame.render_widget(Paragraph::new(text).bold(), title);
    let names = ["commands/s", "percent busy", "ping, us"];
    let colors = [Color::Green, Color::Yellow, Color::Cyan];
    let areas = Layout::horizontal([Constraint::Ratio(1, 3); 3]).split(charts);
    for ((area, name), (history, color)) in areas.iter().zip(names).zip(histories.into_iter().zip(colors)) {
        let width = usize::from(area.width.saturating_sub(2));
        let recent: Vec<u64> = history.iter().rev().take(width).rev().copied().collect();
        let title = format!(" {name}: {} ", history.back().unwrap_or(&0));
        frame
            .render_widget(Sparkline::default().data(recent).style(color).block(Block::bordered().title(title)), *area);
    }
    let header = ["shard", "primary", "", "slots", "busy", "commands/s", "MB", "ping, ms", "replicas"];
    let widths = [5, 16, 8, 6, 10, 11, 9, 9, 9].map(Constraint::Length);
    let rows = shards.into_iter().map(|cells| {
        let style = match cells[2].as_str() {
            "down" => Style::new().fg(Color::Red),
            "leaving" => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        };
        Row::new(cells.map(Cell::from)).style(style)
    });
    let header = Row::new(header).style(Style::new().bold());
    frame.render_widget(Table::new(rows, widths).header(header).block(Block::bordered().title(" shards ")), table);
    let text = if migrations.is_empty() { "none".to_owned() } else { migrations.join("\n") };
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" migrations ")), moves);
    let lines = usize::from(log.height.saturating_sub(2));
    let recent: Vec<String> = picture.events.iter().rev().take(lines).rev().map(line).collect();
    frame.render_widget(Paragraph::new(recent.join("\n")).block(Block::bordered().title(" events ")), log);
}

fn line(event: &Event) -> String {
    let times = if event.repeated > 0 { format!(" ({} times)", event.repeated + 1) } else { String::new() };
    format!("{:>7.1} s  {}{times}", event.at_s, event.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Member;
    use crate::state::{Export, Facts, Load, Node, Peer, State};
    use kvick_planner::ShardId;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn picture() -> Picture {
        let member = Member {
            name: "node-1".into(),
            shard: ShardId(1),
            host: "127.0.0.1".into(),
            port: 7001,
            bus_port: 17001,
            is_running: true,
            ..Member::default()
        };
        let peer = Peer { id: "aa".into(), port: 7001, is_myself: true, slots: vec![(0, 16383)], ..Peer::default() };
        let load = Load { busy_cores: 0.5, workers: 2, commands_s: 1234.0, ping_ms: 0.25, ..Load::default() };
        let export = Export { to: "bb".into(), slots: vec![1, 2], state: "snapshotting".into(), left_bytes: 0 };
        let facts = Facts { id: "aa".into(), peers: vec![peer], exports: vec![export], load, ..Facts::default() };
        let state = State { nodes: vec![Node { member, facts: Some(facts) }], ..State::default() };
        let events = vec![Event { at_s: 1.5, text: "restart node-1".into(), repeated: 2 }];
        Picture { state, events, ..Picture::default() }
    }

    #[test]
    fn the_screen_has_shards_migrations_and_events() {
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).expect("a terminal");
        let history = VecDeque::from([1, 5, 9]);
        terminal.draw(|frame| draw(frame, &picture(), [&history; 3])).expect("a picture");
        let text = terminal.backend().to_string();
        for part in ["node-1 :7001", "16384", "0.50 of 2", "1234", "node-1 -> bb: 2 slots", "restart node-1 (3 times)"]
        {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn a_small_terminal_is_no_problem() {
        let mut terminal = Terminal::new(TestBackend::new(12, 3)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &picture(), [&VecDeque::new(); 3])).expect("a picture");
    }

    #[test]
    fn the_state_is_one_line() {
        let line = status(&picture());
        assert!(line.starts_with("1 shards, 1 migrations | shard 1 serving: 16384 slots"), "{line}");
    }
}
