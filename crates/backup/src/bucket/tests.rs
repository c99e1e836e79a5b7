//! What happens when requests fail, with a server that answers as a test says.

use super::*;
use kvick_testing::accept;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

/// What the server does with a request.
enum Step {
    /// Answers with this status, these headers and this body.
    Answer(u16, &'static str, String),
    /// Answers with status 200 and these headers, but only with the first bytes of a body of 10.
    Cut(&'static str, &'static str),
    /// Closes the connection.
    Close,
}

fn ok(body: &str) -> Step {
    Step::Answer(200, "", body.to_owned())
}

fn error(status: u16, code: &str) -> Step {
    Step::Answer(status, "", format!("<Error><Code>{code}</Code></Error>"))
}

/// Carries out the steps, one for each connection, and returns the heads of the requests.
fn serve(steps: Vec<Step>) -> (Bucket, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let answer = |step| {
            let mut stream = accept(&listener).expect("a connection");
            let head = read_request(&stream);
            // The client may have gone.
            let _ = match step {
                Step::Answer(status, headers, body) => {
                    let length = body.len();
                    write!(
                        stream,
                        "HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
                    )
                }
                Step::Cut(headers, body) => {
                    write!(stream, "HTTP/1.1 200 -\r\nConnection: close\r\nContent-Length: 10\r\n{headers}\r\n{body}")
                }
                Step::Close => Ok(()),
            };
            head
        };
        steps.into_iter().map(answer).collect()
    });
    let variable = move |name: &str| match name {
        "AWS_ENDPOINT_URL" => Some(endpoint.clone()),
        "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("key".to_owned()),
        _ => None,
    };
    (Bucket::open("b/p", &variable).expect("settings"), server)
}

/// The head of a request, in small letters.
fn read_request(stream: &TcpStream) -> String {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).is_ok_and(|count| count > 0) {}
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let _ = io::copy(&mut stream.take(length.unwrap_or(0)), &mut io::sink());
    head
}

#[test]
fn requests_are_repeated_after_failures_that_pass() {
    let (bucket, server) = serve(vec![error(503, "SlowDown"), Step::Close, error(500, "InternalError"), ok("")]);
    bucket.client.call(&Request::put("k".into(), "body".into())).expect("it succeeds in the end");
    let requests = server.join().expect("requests");
    assert_eq!(requests.len(), 4);
    for request in requests {
        assert!(request.starts_with("put /b/k?x-amz-algorithm=aws4-hmac-sha256&"), "{request}");
        assert!(request.contains("content-md5: hbotajrya9fhfedfpclg/a==\r\n"), "{request}");
    }
}

#[test]
fn addresses_without_a_server_are_given_up_soon() {
    let (bucket, server) = serve(vec![]);
    server.join().expect("no requests");
    let error = bucket.list().expect_err("it fails").to_string();
    assert!(error.contains("refused") && error.ends_with("; check AWS_ENDPOINT_URL"), "{error}");
}

#[test]
fn other_failures_are_final() {
    let (bucket, server) = serve(vec![error(403, "InvalidAccessKeyId")]);
    let error = bucket.list().expect_err("it fails");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("check AWS_ACCESS_KEY_ID"), "{error}");
    assert_eq!(server.join().expect("requests").len(), 1);
}

#[test]
fn downloads_continue_where_a_connection_failed() {
    let rest = Step::Answer(206, "ETag: \"x\"\r\n", "456789".to_owned());
    let (bucket, server) = serve(vec![Step::Cut("ETag: \"x\"\r\n", "0123"), error(503, "SlowDown"), rest]);
    let mut found = String::new();
    bucket.read("n", "f").and_then(|mut input| input.read_to_string(&mut found)).expect("read");
    assert_eq!(found, "0123456789");
    let requests = server.join().expect("requests");
    assert!(requests[0].starts_with("get /b/p/n/f?") && !requests[0].contains("\r\nrange:"), "{}", requests[0]);
    for request in &requests[1..] {
        assert!(
            request.contains("\r\nrange: bytes=4-\r\n") && request.contains("\r\nif-match: \"x\"\r\n"),
            "{request}"
        );
    }
}

#[test]
fn objects_that_change_meanwhile_are_not_mixed() {
    let changed = || error(412, "PreconditionFailed");
    // A server that knows no ranges begins anew.
    for (second, text) in [(changed(), "PreconditionFailed"), (ok("0123456789"), "does not send the rest")] {
        let (bucket, server) = serve(vec![Step::Cut("ETag: \"x\"\r\n", "0123"), second]);
        let mut found = String::new();
        let error = bucket.read("n", "f").and_then(|mut input| input.read_to_string(&mut found));
        assert!(error.is_err_and(|error| error.to_string().contains(text)));
        server.join().expect("requests");
    }
}

fn upload(bucket: &Bucket, bytes: usize) -> io::Result<()> {
    let mut upload = Box::new(Upload::new(bucket.client.clone(), "p/n/f".into()));
    upload.write_all(&vec![7; bytes])?;
    upload.finish()
}

fn begun() -> Step {
    let space = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    ok(&format!("<InitiateMultipartUploadResult {space}><UploadId>id</UploadId></InitiateMultipartUploadResult>"))
}

fn part() -> Step {
    Step::Answer(200, "ETag: \"part\"\r\n", String::new())
}

fn completed() -> Step {
    let space = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    let text = "<Location>l</Location><Bucket>b</Bucket><Key>k</Key><ETag>e</ETag>";
    ok(&format!("<CompleteMultipartUploadResult {space}>{text}</CompleteMultipartUploadResult>"))
}

#[test]
fn small_objects_are_sent_at_once_and_large_ones_in_parts() {
    let (bucket, server) = serve(vec![part()]);
    upload(&bucket, 8 << 20).expect("uploaded");
    assert!(server.join().expect("requests")[0].starts_with("put /b/p/n/f?x-amz-"));

    let (bucket, server) = serve(vec![begun(), part(), error(500, "InternalError"), part(), completed()]);
    upload(&bucket, (8 << 20) + 1).expect("uploaded");
    let requests = server.join().expect("requests");
    let methods: Vec<&str> = requests.iter().map(|request| &request[..4]).collect();
    assert_eq!(methods, ["post", "put ", "put ", "put ", "post"]);
    assert!(requests[1..4].iter().all(|request| request.contains("partnumber=") && request.contains("uploadid=id")));
}

#[test]
fn answers_that_begin_well_and_end_with_an_error_are_errors() {
    let (bucket, server) =
        serve(vec![begun(), part(), part(), ok("<Error><Code>InternalError</Code></Error>"), completed()]);
    upload(&bucket, (8 << 20) + 1).expect("uploaded");
    assert_eq!(server.join().expect("requests").len(), 5);
}

#[test]
fn uploads_that_were_completed_without_an_answer_are_complete() {
    let listing = |size: usize| {
        let space = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
        let object =
            format!("<Key>p/n/f</Key><Size>{size}</Size><LastModified>2026-01-31T23:59:59.000Z</LastModified>");
        ok(&format!(
            "<ListBucketResult {space}><IsTruncated>false</IsTruncated><Contents>{object}</Contents></ListBucketResult>"
        ))
    };
    let size = (8 << 20) + 1;
    for (found, is_complete) in [(size, true), (size - 1, false)] {
        let mut steps = vec![begun(), part(), part(), Step::Close, error(404, "NoSuchUpload"), listing(found)];
        // The upload that failed is aborted.
        steps.extend((!is_complete).then(|| Step::Answer(204, "", String::new())));
        let (bucket, server) = serve(steps);
        assert_eq!(upload(&bucket, size).is_ok(), is_complete);
        server.join().expect("requests");
    }
}

#[test]
fn listings_that_lead_nowhere_end() {
    let space = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    let page = format!(
        "<ListMultipartUploadsResult {space}><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
         <NextUploadIdMarker>i</NextUploadIdMarker></ListMultipartUploadsResult>"
    );
    let (bucket, server) = serve(vec![ok(&page), ok(&page)]);
    assert!(listing::uploads(&bucket.client, "p/").expect("a list").is_empty());
    server.join().expect("requests");
    let (bucket, server) = serve(vec![ok("<html>")]);
    assert!(bucket.list().is_err_and(|error| error.to_string().contains("cannot be read")));
    server.join().expect("requests");
}
