//! A client for the HTTP endpoint, and the page of metrics as samples.

use crate::common::wait_until;
use kvick_testing::WAIT_LIMIT;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

/// Connects to the endpoint.
pub fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the endpoint");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream
}

/// Requests a page, with further header lines.
pub fn get(port: u16, path: &str, headers: &str) -> Reply {
    exchange(&mut connect(port), &format!("GET {path} HTTP/1.0\r\nHost: x\r\n{headers}\r\n"))
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

/// The name of a sample, with its labels in alphabetical order.
pub type Name = (String, BTreeMap<String, String>);

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Page {
    /// The types of metrics.
    pub types: BTreeMap<String, String>,
    /// The samples.
    pub samples: BTreeMap<Name, f64>,
}

impl Page {
    /// Scrapes the endpoint until the page was collected after this call: requests within a short time share a page.
    pub fn scrape(port: u16) -> Page {
        let first = Page::scrape_once(port).value("redis_exporter_scrapes_total", &[]);
        let mut page = Page::default();
        wait_until("metrics are collected", || {
            page = Page::scrape_once(port);
            page.value("redis_exporter_scrapes_total", &[]) > first
        });
        page
    }

    fn scrape_once(port: u16) -> Page {
        let reply = get(port, "/metrics", "");
        assert_eq!(reply.status, 200, "{}", reply.body);
        Page::parse(&reply.body)
    }

    /// Reads the text format.
    pub fn parse(text: &str) -> Page {
        let mut page = Page::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(page.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has two heads");
            } else if !line.starts_with('#') {
                let (name, value) = sample(line);
                assert!(page.samples.insert(name, value).is_none(), "twice: {line}");
            }
        }
        page
    }

    /// The sample with these labels.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).unwrap_or_else(|| panic!("no sample of {name} with {labels:?}"))
    }

    /// The sample with these labels, if there is one.
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.get(&(name.to_owned(), labels)).copied()
    }
}

/// Reads a line with a sample.
fn sample(line: &str) -> (Name, f64) {
    let (name, value) = line.rsplit_once(' ').expect("a value");
    let value = value.replace("+Inf", "inf").parse().unwrap_or_else(|_| panic!("a number in {line}"));
    let Some((name, labels)) = name.split_once('{') else { return ((name.to_owned(), BTreeMap::new()), value) };
    let mut labels = labels.strip_suffix('}').expect("an end of labels");
    let mut found = BTreeMap::new();
    while let Some((label, rest)) = labels.split_once("=\"") {
        let mut text = String::new();
        let mut characters = rest.chars();
        loop {
            match characters.next().expect("an end of the label") {
                '"' => break,
                '\\' => text.push(characters.next().expect("an escaped character")),
                other => text.push(other),
            }
        }
        found.insert(label.to_owned(), text);
        labels = characters.as_str().trim_start_matches(',');
    }
    ((name.to_owned(), found), value)
}
