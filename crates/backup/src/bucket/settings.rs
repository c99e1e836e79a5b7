//! Where a bucket is and how to reach it, from an argument and the environment.
//!
//! The variables are those of Amazon's own tools, so that what works for them works here.

use std::io;
use url::Url;

/// The region that servers without regions expect.
const DEFAULT_REGION: &str = "us-east-1";

/// See the module's documentation.
pub(super) struct Settings {
    pub(super) bucket: String,
    /// Empty, or with a slash at its end.
    pub(super) prefix: String,
    pub(super) endpoint: Url,
    /// Whether the bucket is the first part of the path, and not of the host.
    pub(super) has_path_style: bool,
    pub(super) region: String,
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) token: Option<String>,
    /// A file with certificates of authorities; `None` for those of the system.
    pub(super) authorities: Option<String>,
}

impl Settings {
    /// Reads `BUCKET/PREFIX` and variables.
    pub(super) fn new(place: &str, variable: &dyn Fn(&str) -> Option<String>) -> io::Result<Settings> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bucket.is_empty() || bucket.starts_with('.') || !bucket.chars().all(is_name) {
            return Err(wrong(format!(
                "s3://{place} does not begin with the name of a bucket: use s3://BUCKET/PREFIX"
            )));
        }
        // Servers and proxies differ in how they encode other characters.
        let is_part = |part: &str| {
            !part.is_empty()
                && !matches!(part, "." | "..")
                && part.chars().all(|c| is_name(c) || matches!(c, '=' | '@'))
        };
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            let text = format!("s3://{place}: use letters, digits, and the characters - _ . = @ / in the prefix");
            return Err(wrong(text));
        }
        let needed = |name: &str| variable(name).ok_or_else(|| wrong(format!("s3://{place}: set {name}")));
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let given = variable("AWS_ENDPOINT_URL");
        let endpoint = given.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        // Errors contain the address, so it must not contain a password.
        let is_valid = |url: &Url| {
            matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none()
        };
        let url = Url::parse(&endpoint).ok().filter(is_valid);
        let url =
            url.ok_or_else(|| wrong("AWS_ENDPOINT_URL must be an address such as https://HOST:PORT".to_owned()))?;
        Ok(Settings {
            bucket: bucket.to_owned(),
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            endpoint: url,
            // Certificates are for hosts with one name in front of Amazon's.
            has_path_style: given.is_some() || bucket.contains('.'),
            region,
            access_key: needed("AWS_ACCESS_KEY_ID")?,
            secret_key: needed("AWS_SECRET_ACCESS_KEY")?,
            token: variable("AWS_SESSION_TOKEN"),
            authorities: variable("AWS_CA_BUNDLE"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[(&str, &str)] = &[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s")];

    fn settings(place: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variable = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::new(place, &variable).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_name_bucket_and_prefix() {
        for (place, bucket, prefix) in
            [("b", "b", ""), ("b/", "b", ""), ("b/a", "b", "a/"), ("my.b-1/a/b_c=1.2/", "my.b-1", "a/b_c=1.2/")]
        {
            let read = settings(place, KEYS).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((&*read.bucket, &*read.prefix), (bucket, prefix), "{place}");
        }
        for wrong in ["", "/a", "..", "b/../c", "b//c", "b/a b", "b/a?x", "b/\u{e9}", "b%2f", "b/%2e%2e/x"] {
            assert!(settings(wrong, KEYS).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_environment_says_where_the_bucket_is() {
        let read = |variables: &[(&str, &str)]| {
            let read = settings("b", &[KEYS, variables].concat()).unwrap_or_else(|error| panic!("{error}"));
            (read.endpoint.to_string(), read.region, read.has_path_style)
        };
        let amazon = ("https://s3.us-east-1.amazonaws.com/".to_owned(), "us-east-1".to_owned(), false);
        assert_eq!(read(&[]), amazon);
        assert_eq!(read(&[("AWS_REGION", "eu-north-1")]).0, "https://s3.eu-north-1.amazonaws.com/");
        assert_eq!(read(&[("AWS_DEFAULT_REGION", "eu-north-1")]).1, "eu-north-1");
        let own = ("http://10.0.0.1:9000/".to_owned(), "us-east-1".to_owned(), true);
        assert_eq!(read(&[("AWS_ENDPOINT_URL", "http://10.0.0.1:9000")]), own);
    }

    #[test]
    fn errors_name_the_variable_and_no_secret() {
        let error = |variables: &[(&str, &str)]| settings("b", variables).map(drop).expect_err("it is wrong");
        assert!(error(&KEYS[1..]).contains("AWS_ACCESS_KEY_ID"));
        assert!(error(&KEYS[..1]).contains("AWS_SECRET_ACCESS_KEY"));
        for address in ["host:9000", "ftp://host", "http://", "", "http://user:password@host"] {
            let error = error(&[KEYS, &[("AWS_ENDPOINT_URL", address)]].concat());
            assert!(error.contains("AWS_ENDPOINT_URL") && !error.contains("password"), "{error}");
        }
    }
}
