//! One endpoint for a whole cluster: the protocol of forwarding requests to the nodes that own their slots, without
//! I/O.
//!
//! * [`Link`] is a connection to another node that carries the requests of many clients. Replies arrive in the order of
//!   the requests. A request stays in the link until it is answered, so that it can be sent elsewhere after a
//!   redirection.
//! * [`ReplyQueue`] brings the replies to one client into the order of its requests, whichever nodes they come from.
//! * [`split`](mod@split) divides requests for keys in several slots, and requests that concern all nodes; a
//!   [`Gather`] merges the replies to their parts.
//! * [`CachedKeys`] knows which clients cache keys of other nodes, and [`Push`] is a parsed push message.
//! * [`Scanner`] finds the end of a reply, and [`Redirect`] is a parsed MOVED or ASK.
//!
//! Nothing here is trusted: a peer's malformed reply ends its link, and a stated length alone reserves no memory.

mod cached_keys;
pub mod encode;
mod frame;
mod gather;
mod link;
mod push;
mod queue;
mod redirect;
pub mod split;

pub use cached_keys::CachedKeys;
pub use frame::{Malformed, Scanner};
pub use gather::{Gather, Merge};
pub use link::{Answer, Broken, Content, Link, Request, Setup, Subscription, Ticket, Unanswered};
pub use push::Push;
pub use queue::ReplyQueue;
pub use redirect::{Redirect, Target};
