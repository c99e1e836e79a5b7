//! The event stream of a page: figures of the server once per second, and messages of subscriptions.
//!
//! | event | data |
//! | --- | --- |
//! | `sample` | `{"time_ms":N,"lost":N,"may_write":B,"replies":[...]}`: replies to the commands in [`SAMPLED`] |
//! | `messages` | a list of messages of subscriptions |
//! | `end` | why the stream ends; the browser must not reconnect |

use crate::api::{Page, Refusal, session_of};
use crate::connection::{Failure, Request as Command};
use crate::guard;
use crate::listeners::{Stream, event};
use crate::reply::{Kind, Reply as Decoded, push_text};
use crate::sessions::{Session, Token};
use kvick_http::router::{reply, stream};
use kvick_http::{Reply, Request, StatusCode};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::MissedTickBehavior;

/// The type of event streams.
const CONTENT_TYPE: &str = "text/event-stream";
/// How often figures are read.
const INTERVAL: Duration = Duration::from_secs(1);

/// The commands whose replies are the figures. A command that the user may not call is called once per stream only,
/// lest it fill the log of denied commands.
const SAMPLED: [&[&str]; 2] = [&["INFO", "everything"], &["LATENCY", "HISTOGRAM"]];

/// Opens an event stream.
pub(crate) async fn open(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    let session = session_of(&page, &request)?;
    let token = guard::token(&request).ok_or((StatusCode::UNAUTHORIZED, String::new()))?;
    let (events, receiver) = session.listeners.open();
    tokio::spawn(send_samples(page, token, session, events));
    Ok(reply(StatusCode::OK, CONTENT_TYPE, stream(receiver)))
}

/// Sends figures until the browser has gone or the session has ended.
async fn send_samples(page: Arc<Page>, token: Token, session: Arc<Session>, events: Arc<Stream>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut denied: [Option<String>; SAMPLED.len()] = Default::default();
    // The session ends although this task knows it.
    let (weak, listeners) = (Arc::downgrade(&session), session.listeners.clone());
    drop(session);
    loop {
        ticks.tick().await;
        let session = weak.upgrade().filter(|_| page.host.settings().is_enabled);
        // An open page counts as use of the session.
        let session = session.filter(|_| page.sessions.find(&token, Instant::now()).is_some());
        let Some(session) = session.filter(|_| listeners.has(&events)) else {
            events.send(end("The session has ended."));
            return;
        };
        let wanted: Vec<Command> = (0..SAMPLED.len()).filter(|at| denied[*at].is_none()).map(command).collect();
        let replies = match session.commands.call(None, wanted).await {
            Ok(replies) => replies,
            Err(Failure::Busy) => continue,
            Err(Failure::Closed) => {
                events.send(end("The server has ended the session."));
                return;
            }
        };
        let replies = merge(replies, &mut denied);
        if !events.send(sample(&page, &events, &replies)) {
            return;
        }
    }
}

fn command(at: usize) -> Command {
    SAMPLED[at].iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Adds the earlier replies of commands that were denied, and remembers new ones.
fn merge(replies: Vec<Decoded>, denied: &mut [Option<String>; SAMPLED.len()]) -> Vec<String> {
    let mut replies = replies.into_iter();
    let merge_one = |denied: &mut Option<String>| {
        if let Some(json) = denied {
            return json.clone();
        }
        let Some(reply) = replies.next() else { return "null".to_owned() };
        if matches!(&reply.kind, Kind::Error(error) if error.starts_with("NOPERM")) {
            *denied = Some(reply.json.clone());
        }
        reply.json
    };
    denied.iter_mut().map(merge_one).collect()
}

fn sample(page: &Page, events: &Stream, replies: &[String]) -> kvick_http::Bytes {
    let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let (lost, may_write) = (events.lost(), page.host.settings().may_write);
    let replies = replies.join(",");
    event(
        "sample",
        &format!("{{\"time_ms\":{time_ms},\"lost\":{lost},\"may_write\":{may_write},\"replies\":[{replies}]}}"),
    )
}

fn end(sentence: &str) -> kvick_http::Bytes {
    let mut data = "{\"reason\":".to_owned();
    push_text(&mut data, sentence);
    data.push('}');
    event("end", &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_commands_are_not_called_again() {
        let reply = |json: &str, kind: Kind| Decoded { json: json.to_owned(), kind };
        let mut denied = Default::default();
        let replies = vec![reply("1", Kind::Error("NOPERM no".to_owned())), reply("2", Kind::Ordinary)];
        assert_eq!(merge(replies, &mut denied), ["1", "2"]);
        assert_eq!(denied, [Some("1".to_owned()), None]);
        assert_eq!(merge(vec![reply("3", Kind::Error("LOADING".to_owned()))], &mut denied), ["1", "3"]);
        assert_eq!(merge(vec![reply("4", Kind::Ordinary)], &mut denied), ["1", "4"]);
    }
}
