//! The paths below `/ui`, and what they do.

use crate::assets::{ASSETS, INDEX};
use crate::connection::{Connection, Failure, OnMessages};
use crate::events;
use crate::guard;
use crate::host::{Browser, Host};
use crate::listeners::Listeners;
use crate::policy;
use crate::reply::{Kind, parse_hex, push_text};
use crate::sessions::{Session, Sessions, Token};
use crate::throttle::Throttle;
use kvick_http::headers::{HeaderValue, LOCATION, SET_COOKIE};
use kvick_http::router::{full, reply, text};
use kvick_http::{Guard, Method, Reply, Request, Router, StatusCode};
use serde::Deserialize;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Commands of one request.
const COMMANDS_MAX: usize = 64;
/// Logins at the same time.
const LOGINS_MAX: usize = 8;
/// Channels and patterns that a request may name.
const CHANNELS_MAX: usize = 64;
/// How long a browser waits for replies.
const REPLY_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a login may take.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a failed login takes at least.
const FAILURE_TIME: Duration = Duration::from_millis(300);
/// How often sessions are ended whose time is over.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The type of replies.
const JSON: &str = "application/json";

/// What the handlers share.
pub(crate) struct Page {
    pub host: Arc<dyn Host>,
    pub sessions: Sessions,
    throttle: Mutex<Throttle>,
    /// Logins that wait for the server.
    logins: AtomicUsize,
}

/// A refusal: its status, and a sentence for the user.
pub(crate) type Refusal = (StatusCode, String);

/// Adds the routes of the page. While it is disabled, they answer as if they did not exist.
pub fn add_routes(router: Router, host: Arc<dyn Host>) -> Router {
    let page =
        Arc::new(Page { host, sessions: Sessions::default(), throttle: Mutex::default(), logins: AtomicUsize::new(0) });
    let mut router = router;
    for asset in ASSETS.iter().chain([&INDEX]) {
        let page = page.clone();
        router = router.get(asset.path, Guard::Open, move |request| match page.host.settings().is_enabled {
            true => asset.reply(&request.headers),
            false => missing(),
        });
    }
    let redirecting = page.clone();
    router = router.get("/ui", Guard::Open, move |_| match redirecting.host.settings().is_enabled {
        true => redirect(),
        false => missing(),
    });
    router = add(router, &page, Method::GET, "/ui/api/session", session_state);
    router = add(router, &page, Method::GET, "/ui/api/commands-table", commands_table);
    router = add(router, &page, Method::GET, "/ui/api/directives", directives);
    router = add(router, &page, Method::GET, "/ui/api/events", events::open);
    router = add(router, &page, Method::POST, "/ui/api/login", log_in);
    router = add(router, &page, Method::POST, "/ui/api/logout", log_out);
    router = add(router, &page, Method::POST, "/ui/api/commands", commands);
    add(router, &page, Method::POST, "/ui/api/subscriptions", subscriptions)
}

/// Adds a route. Requests that do something must come from the page.
fn add<F>(
    router: Router,
    page: &Arc<Page>,
    method: Method,
    path: &'static str,
    handler: fn(Arc<Page>, Request) -> F,
) -> Router
where
    F: Future<Output = Result<Reply, Refusal>> + Send + 'static,
{
    let page = page.clone();
    let is_action = method == Method::POST;
    router.route(method, path, Guard::Open, move |request| {
        let page = page.clone();
        async move {
            if !page.host.settings().is_enabled {
                return missing();
            }
            if is_action && !guard::is_from_page(&request.headers) {
                return refusal((StatusCode::FORBIDDEN, "The request does not come from this page.".to_owned()));
            }
            guard::protect(handler(page, request).await.unwrap_or_else(refusal))
        }
    })
}

fn missing() -> Reply {
    text(StatusCode::NOT_FOUND, "There is no such page.\n")
}

/// Relative, so that it also works behind a proxy with a path of its own.
fn redirect() -> Reply {
    let mut reply = text(StatusCode::PERMANENT_REDIRECT, "");
    reply.headers_mut().insert(LOCATION, HeaderValue::from_static("ui/"));
    guard::protect(reply)
}

fn json(body: String) -> Reply {
    reply(StatusCode::OK, JSON, full(body))
}

fn refusal((status, sentence): Refusal) -> Reply {
    let mut body = "{\"error\":".to_owned();
    push_text(&mut body, &sentence);
    body.push('}');
    guard::protect(reply(status, JSON, full(body)))
}

fn parse<T: for<'a> Deserialize<'a>>(request: &Request) -> Result<T, Refusal> {
    serde_json::from_slice(&request.body).map_err(|error| (StatusCode::BAD_REQUEST, format!("Invalid body: {error}.")))
}

/// The session of a request.
///
/// # Errors
/// If there is none.
pub(crate) fn session_of(page: &Page, request: &Request) -> Result<Arc<Session>, Refusal> {
    let session = guard::token(request).and_then(|token| page.sessions.find(&token, Instant::now()));
    session.ok_or_else(|| (StatusCode::UNAUTHORIZED, "Please log in.".to_owned()))
}

pub(crate) fn failure(failure: Failure) -> Refusal {
    match failure {
        Failure::Busy => (StatusCode::TOO_MANY_REQUESTS, "Too many requests of this session are waiting.".to_owned()),
        Failure::Closed => (StatusCode::UNAUTHORIZED, "The server has ended the session. Please log in.".to_owned()),
    }
}

/// Who is logged in, which is not an error if it is nobody.
async fn session_state(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    let session = guard::token(&request).and_then(|token| page.sessions.find(&token, Instant::now()));
    Ok(json(describe(&page, session.as_deref())))
}

fn describe(page: &Page, session: Option<&Session>) -> String {
    let mut body = "{\"user\":".to_owned();
    match session {
        Some(session) => push_text(&mut body, &session.user),
        None => body.push_str("null"),
    }
    body.push_str(&format!(",\"may_write\":{}}}", page.host.settings().may_write));
    body
}

async fn commands_table(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    session_of(&page, &request)?;
    Ok(json(page.host.commands_table()))
}

async fn directives(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    session_of(&page, &request)?;
    Ok(json(page.host.directives()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    user: String,
    password: String,
}

async fn log_in(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    let login: Login = parse(&request)?;
    let peer = request.peer.ip();
    let throttle = || page.throttle.lock().unwrap_or_else(PoisonError::into_inner);
    if !throttle().admits(peer, Instant::now()) {
        let sentence = "Too many failed logins from this address. Please wait a minute.";
        return Err((StatusCode::TOO_MANY_REQUESTS, sentence.to_owned()));
    }
    if login.password.is_empty() && !guard::is_addressed_directly(&request.headers) {
        let sentence = "A login without a password is possible only if this page was opened by an IP address or as \
                        localhost.";
        return Err((StatusCode::FORBIDDEN, sentence.to_owned()));
    }
    let slot = LoginSlot::take(&page).ok_or_else(|| failure(Failure::Busy))?;
    let opened = tokio::time::timeout(LOGIN_TIME_MAX, open_session(&page, &request, &login)).await;
    drop(slot);
    let session = match opened {
        Ok(Ok(session)) => session,
        Ok(Err(refusal)) => {
            if refusal.0 == StatusCode::UNAUTHORIZED {
                throttle().failed(peer, Instant::now());
                tokio::time::sleep(FAILURE_TIME).await;
            }
            return Err(refusal);
        }
        Err(_) => return Err((StatusCode::GATEWAY_TIMEOUT, "The server did not answer in time.".to_owned())),
    };
    let token = Token::random().map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    if let Some(former) = guard::token(&request) {
        page.sessions.remove(&former);
    }
    let body = describe(&page, Some(&session));
    page.sessions.add(token.clone(), Arc::new(session), Instant::now());
    sweep_while_needed(&page);
    Ok(with_cookie(json(body), &request, Some(&token)))
}

/// One of the logins at the same time.
struct LoginSlot<'a>(&'a AtomicUsize);

impl LoginSlot<'_> {
    fn take(page: &Page) -> Option<LoginSlot<'_>> {
        let slot = LoginSlot(&page.logins);
        (slot.0.fetch_add(1, Ordering::Relaxed) < LOGINS_MAX).then_some(slot)
    }
}

impl Drop for LoginSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn open_session(page: &Page, request: &Request, login: &Login) -> Result<Session, Refusal> {
    let listeners = Arc::new(Listeners::default());
    let receivers = listeners.clone();
    let commands = open_connection(page, request, login, Box::new(|_| {})).await?;
    let publish: OnMessages = Box::new(move |messages| receivers.publish(&messages));
    let messages = open_connection(page, request, login, publish).await?;
    Ok(Session { user: login.user.clone(), commands, messages, subscribed: Default::default(), listeners })
}

/// Opens a connection, and logs it in.
async fn open_connection(
    page: &Page,
    request: &Request,
    login: &Login,
    on_messages: OnMessages,
) -> Result<Connection, Refusal> {
    let internal = |error: std::io::Error| (StatusCode::INTERNAL_SERVER_ERROR, format!("No connection: {error}."));
    let browser = Browser { peer: request.peer, local: request.local };
    let stream = page.host.connect(browser).map_err(internal)?;
    let connection = Connection::start(stream, on_messages).map_err(internal)?;
    let hello = ["HELLO", "3", "AUTH", &login.user, &login.password, "SETNAME", "kvick-page"];
    let hello = hello.iter().map(|word| word.as_bytes().to_vec()).collect();
    let replies = connection.call(None, vec![hello]).await;
    match replies.map(|mut replies| replies.pop().map(|reply| reply.kind)) {
        Ok(Some(Kind::Error(error))) if error.starts_with("WRONGPASS") => {
            Err((StatusCode::UNAUTHORIZED, "Wrong user name or password, or the user is disabled.".to_owned()))
        }
        Ok(Some(Kind::Error(error))) => Err((StatusCode::FORBIDDEN, error)),
        Ok(_) => Ok(connection),
        Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "The server has closed the connection.".to_owned())),
    }
}

fn with_cookie(mut reply: Reply, request: &Request, token: Option<&Token>) -> Reply {
    if let Ok(cookie) = HeaderValue::try_from(guard::cookie(request, token)) {
        reply.headers_mut().insert(SET_COOKIE, cookie);
    }
    reply
}

/// Starts a task that ends sessions in time, until there are none. A task of an earlier login may also run, which
/// does no harm.
fn sweep_while_needed(page: &Arc<Page>) {
    let page = page.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            if page.sessions.sweep(Instant::now()) == 0 {
                return;
            }
        }
    });
}

async fn log_out(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    if let Some(token) = guard::token(&request) {
        page.sessions.remove(&token);
    }
    Ok(with_cookie(json("{}".to_owned()), &request, None))
}

/// An argument: text, or any bytes in hexadecimal.
#[derive(Deserialize)]
#[serde(untagged)]
enum Argument {
    Text(String),
    Bytes { hex: String },
}

impl Argument {
    fn bytes(self) -> Result<Vec<u8>, Refusal> {
        match self {
            Argument::Text(text) => Ok(text.into_bytes()),
            Argument::Bytes { hex } => parse_hex(&hex)
                .ok_or_else(|| (StatusCode::BAD_REQUEST, "An argument is not valid hexadecimal.".to_owned())),
        }
    }
}

fn all_bytes(arguments: Vec<Argument>) -> Result<Vec<Vec<u8>>, Refusal> {
    arguments.into_iter().map(Argument::bytes).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Commands {
    database: Option<u32>,
    commands: Vec<Vec<Argument>>,
}

async fn commands(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    let session = session_of(&page, &request)?;
    let Commands { database, commands } = parse(&request)?;
    if commands.len() > COMMANDS_MAX || commands.iter().any(Vec::is_empty) {
        let sentence = format!("A request has at most {COMMANDS_MAX} commands, none of which is empty.");
        return Err((StatusCode::BAD_REQUEST, sentence));
    }
    let may_write = page.host.settings().may_write;
    let (mut admitted, mut refusals) = (Vec::new(), Vec::new());
    for command in commands {
        let args = all_bytes(command)?;
        let facts = page.host.command(&args[0], args.get(1).map(Vec::as_slice));
        match policy::check(facts.as_ref(), &args, may_write) {
            Ok(()) => {
                admitted.push(args);
                refusals.push(None);
            }
            Err(reason) => refusals.push(Some(reason)),
        }
    }
    let replies = tokio::time::timeout(REPLY_TIME_MAX, session.commands.call(database, admitted)).await;
    let Ok(replies) = replies else {
        let sentence = "The server has not answered in time. The command may still be running.";
        return Err((StatusCode::GATEWAY_TIMEOUT, sentence.to_owned()));
    };
    let mut replies = replies.map_err(failure)?.into_iter();
    let mut body = "{\"replies\":[".to_owned();
    for (number, refused) in refusals.into_iter().enumerate() {
        if number > 0 {
            body.push(',');
        }
        match refused {
            Some(reason) => {
                body.push_str("{\"refused\":");
                push_text(&mut body, &reason);
                body.push('}');
            }
            None => body.push_str(&replies.next().map_or("null".to_owned(), |reply| reply.json)),
        }
    }
    body.push_str("]}");
    Ok(json(body))
}

/// New subscriptions in place of the present ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscriptions {
    #[serde(default)]
    channels: Vec<Argument>,
    #[serde(default)]
    patterns: Vec<Argument>,
    #[serde(default)]
    shard_channels: Vec<Argument>,
}

async fn subscriptions(page: Arc<Page>, request: Request) -> Result<Reply, Refusal> {
    let session = session_of(&page, &request)?;
    let wanted: Subscriptions = parse(&request)?;
    let lists = [
        ("SUBSCRIBE", "UNSUBSCRIBE", wanted.channels),
        ("PSUBSCRIBE", "PUNSUBSCRIBE", wanted.patterns),
        ("SSUBSCRIBE", "SUNSUBSCRIBE", wanted.shard_channels),
    ];
    if lists.iter().map(|(_, _, names)| names.len()).sum::<usize>() > CHANNELS_MAX {
        return Err((StatusCode::BAD_REQUEST, format!("At most {CHANNELS_MAX} channels and patterns are possible.")));
    }
    let mut requests = Vec::new();
    for ((subscribe, unsubscribe, names), subscribed) in lists.into_iter().zip(&session.subscribed) {
        // A user may lack the right to the command that is not needed.
        if subscribed.swap(!names.is_empty(), Ordering::Relaxed) {
            requests.push(vec![unsubscribe.as_bytes().to_vec()]);
        }
        if !names.is_empty() {
            let mut args = vec![subscribe.as_bytes().to_vec()];
            args.extend(all_bytes(names)?);
            requests.push(args);
        }
    }
    let changed = tokio::time::timeout(REPLY_TIME_MAX, session.messages.change_subscriptions(requests)).await;
    let Ok(changed) = changed else {
        return Err((StatusCode::GATEWAY_TIMEOUT, "The server has not answered in time.".to_owned()));
    };
    let errors = changed.map_err(failure)?;
    let mut body = "{\"errors\":[".to_owned();
    for (number, error) in errors.iter().enumerate() {
        if number > 0 {
            body.push(',');
        }
        push_text(&mut body, error);
    }
    body.push_str("]}");
    Ok(json(body))
}
