//! The console of a user who debugs a script.

/// The user's end of a debugger session.
pub trait Console {
    /// Sends bytes to the user.
    fn send(&mut self, bytes: &[u8]);

    /// Waits for input and appends it.
    fn receive(&mut self, into: &mut Vec<u8>) -> Received;
}

/// The result of waiting for input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// Input has arrived.
    Input,
    /// The user has disconnected: the script continues to its end.
    Disconnected,
    /// The script must end with this error.
    End(String),
}
