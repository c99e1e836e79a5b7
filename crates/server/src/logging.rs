//! The server's log.

use std::fmt::Arguments;

/// What is wrong or critical.
pub fn warning(message: Arguments<'_>) {
    line('#', message);
}

/// What an operator wants to know.
pub fn notice(message: Arguments<'_>) {
    line('*', message);
}

/// What helps to find out what goes on.
pub fn verbose(message: Arguments<'_>) {
    line('-', message);
}

fn line(mark: char, message: Arguments<'_>) {
    println!("{}:M {mark} {message}", std::process::id());
}
