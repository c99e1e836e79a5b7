//! Publish and subscribe.
//!
//! - [`subscribe`]: subscribing and unsubscribing.
//! - [`publish`]: publishing messages.
//! - [`inspect`]: PUBSUB, introspection of subscriptions.
//!
//! Message delivery is in [`kvick_core::pubsub`].

pub mod inspect;
pub mod publish;
pub mod subscribe;

use kvick_commands::spec::{Command, Flags};
use kvick_engine::session::SessionHandler;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[
    subscribe::PSUBSCRIBE,
    publish::PUBLISH,
    inspect::PUBSUB,
    subscribe::PUNSUBSCRIBE,
    publish::SPUBLISH,
    subscribe::SSUBSCRIBE,
    subscribe::SUBSCRIBE,
    subscribe::SUNSUBSCRIBE,
    subscribe::UNSUBSCRIBE,
];

/// Flags of the commands that subscribe or unsubscribe. No other commands have both of the first two: see
/// [`is_listening`](subscribe::is_listening).
const LISTENING: &[Flags] = &[Flags::PUBSUB, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE];
