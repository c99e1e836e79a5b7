//! The files of the page, which are part of the program.

use crate::guard;
use kvick_http::headers::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use kvick_http::router::{full, reply};
use kvick_http::{Reply, StatusCode};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A file.
pub struct Asset {
    /// The path under which it is served.
    pub path: &'static str,
    content_type: &'static str,
    content: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! assets {
    ($($name:literal: $content_type:expr),* $(,)?) => {
        &[$(Asset {
            path: concat!("/ui/", $name),
            content_type: $content_type,
            content: include_bytes!(concat!("../assets/", $name)),
        }),*]
    };
}

/// The document, which is also served as `/ui/`.
pub const INDEX: Asset =
    Asset { path: "/ui/", content_type: "text/html; charset=utf-8", content: include_bytes!("../assets/index.html") };

/// All other files.
pub const ASSETS: &[Asset] = assets! {
    "icon.svg": "image/svg+xml",
    "style.css": STYLE,
    "app.js": SCRIPT,
    "api.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "charts.js": SCRIPT,
    "rates.js": SCRIPT,
    "views/overview.js": SCRIPT,
    "views/clients.js": SCRIPT,
    "views/logs.js": SCRIPT,
    "views/keyspace.js": SCRIPT,
    "views/values.js": SCRIPT,
    "views/hot.js": SCRIPT,
    "views/slots.js": SCRIPT,
    "views/cluster.js": SCRIPT,
    "views/replication.js": SCRIPT,
    "views/messages.js": SCRIPT,
    "views/users.js": SCRIPT,
    "views/configuration.js": SCRIPT,
    "views/console.js": SCRIPT,
    "vendor/uplot.js": SCRIPT,
    "vendor/uplot.css": STYLE,
    "vendor/uplot-license.txt": "text/plain; charset=utf-8",
};

impl Asset {
    /// The reply with the file, or without it if the browser has it already.
    pub fn reply(&self, headers: &HeaderMap) -> Reply {
        let mut hasher = DefaultHasher::new();
        self.content.hash(&mut hasher);
        let tag = format!("\"{:016x}\"", hasher.finish());
        let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
        let mut answer = match is_known {
            true => reply(StatusCode::NOT_MODIFIED, self.content_type, full("")),
            false => reply(StatusCode::OK, self.content_type, full(self.content)),
        };
        // The browser asks each time whether its copy is current.
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Ok(tag) = HeaderValue::try_from(tag) {
            answer.headers_mut().insert(ETAG, tag);
        }
        guard::protect(answer)
    }
}
