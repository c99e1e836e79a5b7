//! What a browser sends: a small HTTP client with a cookie.

use crate::common::Server;
use kvick_testing::{WAIT_LIMIT, free_port};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// In lower case.
    pub headers: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The text of an error.
    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

/// Starts a server with the page.
pub fn start(args: &[&str]) -> (Server, Browser) {
    let port = free_port();
    let server = Server::start(&[&["--metrics-port", &port.to_string(), "--ui", "yes"], args].concat());
    (server, Browser::new(port))
}

/// A browser on one page.
#[derive(Clone, Debug)]
pub struct Browser {
    pub port: u16,
    /// The header `Host`.
    pub host: String,
    /// The header `Cookie`.
    pub cookie: String,
    /// Header lines that requests of the page have.
    pub own: String,
}

impl Browser {
    pub fn new(port: u16) -> Browser {
        let host = format!("127.0.0.1:{port}");
        let own = format!("X-Kvick-Page: 1\r\nOrigin: http://{host}\r\n");
        Browser { port, host, cookie: String::new(), own }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the endpoint");
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream
    }

    fn head(&self, method: &str, path: &str, more: &str) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\nConnection: close\r\n{more}",
            self.host, self.cookie
        )
    }

    pub fn get(&self, path: &str) -> Reply {
        self.exchange(&(self.head("GET", path, "") + "\r\n"))
    }

    /// Requests a page with further header lines.
    pub fn get_with(&self, path: &str, headers: &str) -> Reply {
        self.exchange(&(self.head("GET", path, headers) + "\r\n"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, body, &self.own)
    }

    /// Posts with these header lines in place of the page's own.
    pub fn post_with(&self, path: &str, body: &Value, headers: &str) -> Reply {
        let body = body.to_string();
        let length = format!("{headers}Content-Length: {}\r\n", body.len());
        self.exchange(&(self.head("POST", path, &length) + "\r\n" + &body))
    }

    fn exchange(&self, request: &str) -> Reply {
        exchange(&mut self.connect(), request)
    }

    /// Logs in; on success the browser has the cookie of the session.
    pub fn log_in(&mut self, user: &str, password: &str) -> Reply {
        let reply = self.post("/ui/api/login", &serde_json::json!({"user": user, "password": password}));
        if let Some(cookie) = reply.header("set-cookie") {
            self.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        }
        reply
    }

    /// Logs the default user in.
    pub fn logged_in(mut self) -> Browser {
        let reply = self.log_in("default", "");
        assert_eq!(reply.status, 200, "{}", reply.body);
        self
    }

    /// Runs commands, each in words.
    pub fn try_run(&self, commands: &[&[&str]]) -> Reply {
        self.post("/ui/api/commands", &serde_json::json!({ "commands": commands }))
    }

    /// Runs one command.
    #[track_caller]
    pub fn run(&self, command: &[&str]) -> Value {
        let reply = self.try_run(&[command]);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["replies"][0].clone()
    }

    /// Opens the event stream.
    pub fn events(&self) -> Events {
        let mut stream = self.connect();
        stream.write_all((self.head("GET", "/ui/api/events", "") + "\r\n").as_bytes()).expect("a connection");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).expect("a reply") > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
        Events { reader }
    }
}

/// Sends a request, after which the server closes the connection, and reads the reply.
pub fn exchange(stream: &mut (impl Read + Write), request: &str) -> Reply {
    stream.write_all(request.as_bytes()).expect("a connection");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("a reply");
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Reply { status, headers: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// An event stream.
pub struct Events {
    reader: BufReader<TcpStream>,
}

impl Events {
    /// The next event of a kind; earlier ones are skipped.
    #[track_caller]
    pub fn next(&mut self, kind: &str) -> Value {
        let mut found = String::new();
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).expect("an event") > 0, "the stream has ended");
            if let Some(name) = line.strip_prefix("event: ") {
                found = name.trim_end().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ").filter(|_| found == kind) {
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }
}
