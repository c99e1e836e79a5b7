//! `planner-sim`: runs the planner against a model of a cluster, and prints what happened.
//!
//!     planner-sim                     the comparison of all curves
//!     planner-sim five-million        from nothing to 5 million requests per second
//!     planner-sim moves               how long slots take to move
//!     planner-sim watch CURVE         one curve, second by second

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => kvick_planner::simulation::report::curves(),
        ["five-million"] => kvick_planner::simulation::report::five_million(),
        ["moves"] => kvick_planner::simulation::report::moves(),
        ["watch", name] if kvick_planner::simulation::report::watch(name) => {}
        _ => {
            eprintln!("usage: planner-sim [five-million | moves | watch CURVE]");
            std::process::exit(2);
        }
    }
}
