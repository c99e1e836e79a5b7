//! TLS end to end, with generated certificates and the client of the TLS library.

mod common;

use common::authority::{Authority, Identity};
use common::segments::first_parts_are_acknowledged;
use common::{Server, free_port, wait_until};
use kvick_testing::SetOnDrop;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, version};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const WAIT_LIMIT: Duration = Duration::from_secs(20);
const MB: usize = 1024 * 1024;

fn text(path: &Path) -> &str {
    path.to_str().expect("a name of ASCII")
}

/// A server with a TLS port and a plain port.
struct TlsServer {
    server: Server,
    port: u16,
    authority: Authority,
    client: Identity,
}

impl TlsServer {
    fn start(args: &[&str]) -> Self {
        let authority = Authority::new("an authority");
        let (identity, client) = (authority.certify("server"), authority.certify("client"));
        let port = free_port();
        let (number, ca) = (port.to_string(), authority.file());
        let own = [
            "--tls-port",
            &number,
            "--tls-cert-file",
            text(&identity.certificate),
            "--tls-key-file",
            text(&identity.key),
            "--tls-ca-cert-file",
            text(&ca),
            "--enable-debug-command",
            "yes",
        ];
        let server = Server::start(&[&own, args].concat());
        TlsServer { server, port, authority, client }
    }

    fn config(&self, identity: Option<&Identity>) -> ClientConfig {
        self.config_of(identity, &[&version::TLS13, &version::TLS12])
    }

    fn config_of(
        &self,
        identity: Option<&Identity>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.issuer.der().clone()).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let Some(Identity { certificate, key, .. }) = identity else { return builder.with_no_client_auth() };
        let chain = vec![CertificateDer::from_pem_file(certificate).expect("a certificate")];
        builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).expect("a key")).expect("a pair")
    }

    fn connect_with(&self, config: ClientConfig) -> Client {
        TlsServer::connect_to(self.port, config)
    }

    fn connect_to(port: u16, config: ClientConfig) -> Client {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        socket.set_nodelay(true).expect("an option");
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        Client(StreamOwned::new(tls, socket))
    }

    fn connect(&self) -> Client {
        self.connect_with(self.config(Some(&self.client)))
    }

    fn set(&self, words: &[&str]) -> redis::RedisResult<()> {
        redis::cmd("CONFIG").arg("SET").arg(words).query(&mut self.server.client())
    }

    fn info(&self, section: &str, field: &str) -> String {
        let page: String = redis::cmd("INFO").arg(section).query(&mut self.server.client()).expect("a page");
        let prefix = format!("{field}:");
        page.lines().find_map(|line| line.strip_prefix(&prefix)).expect("a field").to_string()
    }
}

/// A connection with TLS.
struct Client(StreamOwned<ClientConnection, TcpStream>);

impl Client {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("a connection that takes bytes");
        self.0.flush().expect("the same");
    }

    #[track_caller]
    fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        self.0.read_exact(&mut got).expect("as many bytes");
        assert!(got == expected, "got {:?}", String::from_utf8_lossy(&got[..got.len().min(100)]));
    }

    #[track_caller]
    fn ask(&mut self, words: &[&[u8]], expected: impl AsRef<[u8]>) {
        self.send(request(words));
        self.expect(expected);
    }

    /// Whether a request is answered at all.
    fn is_let_in(&mut self) -> bool {
        let mut byte = [0];
        self.0.write_all(b"PING\r\n").is_ok() && matches!(self.0.read(&mut byte), Ok(1))
    }

    fn certificate(&mut self) -> Vec<u8> {
        self.ask(&[b"PING"], "+PONG\r\n");
        self.0.conn.peer_certificates().expect("a certificate")[0].to_vec()
    }
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn for_workers(args: &[&str], test: impl Fn(&TlsServer)) {
    for workers in ["1", "4"] {
        println!("with {workers} workers");
        test(&TlsServer::start(&[&["--io-threads", workers], args].concat()));
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 % 251) as u8).collect()
}

#[test]
fn values_of_all_sizes_round_trip_in_both_tls_versions() {
    for_workers(&[], |server| {
        for version in [&version::TLS12, &version::TLS13] {
            let mut client = server.connect_with(server.config_of(Some(&server.client), &[version]));
            // Around the lengths of records, of reads and of what is written at once.
            for size in [0, 1, 100, 16_383, 16_384, 16_385, 32_768, 65_536, 100_000, 3 * MB + 1] {
                let value = pattern(size);
                client.ask(&[b"SET", b"key", &value], "+OK\r\n");
                client.ask(&[b"GET", b"key"], bulk(&value));
            }
        }
    });
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    for_workers(&[], |server| {
        let mut client = server.connect();
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for number in 0..20_000 {
            requests.extend(request(&[b"ECHO", number.to_string().as_bytes()]));
            replies.extend(bulk(number.to_string().as_bytes()));
        }
        client.send(requests);
        client.expect(replies);
    });
}

#[test]
fn a_slow_reader_gets_everything_once_and_in_order() {
    for_workers(&["--client-output-buffer-limit", "normal", "0", "0", "0"], |server| {
        let mut client = server.connect();
        let value = pattern(MB);
        client.ask(&[b"SET", b"key", &value], "+OK\r\n");
        for number in 0..40 {
            client.send(request(&[b"GET", b"key"]));
            client.send(request(&[b"ECHO", number.to_string().as_bytes()]));
        }
        // The server continues to serve others, and shows the waiting bytes.
        let mut other = server.server.client();
        let omem = |list: &str| {
            let fields = list.lines().flat_map(|line| line.split(' ')).filter_map(|field| field.strip_prefix("omem="));
            fields.filter_map(|bytes| bytes.parse::<usize>().ok()).max().unwrap_or(0)
        };
        wait_until("replies wait", || {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut other).expect("a list");
            omem(&list) > 10 * MB
        });
        for number in 0..40 {
            client.expect(bulk(&value));
            client.expect(bulk(number.to_string().as_bytes()));
        }
        client.ask(&[b"PING"], "+PONG\r\n");
    });
}

#[test]
fn messages_reach_subscribers_with_tls() {
    for_workers(&[], |server| {
        let mut subscriber = server.connect();
        subscriber.ask(&[b"SUBSCRIBE", b"news"], "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
        let mut publisher = server.connect();
        let message = pattern(9_000);
        for number in 0..100usize {
            publisher.ask(&[b"PUBLISH", b"news", &message[..number * 90]], ":1\r\n");
        }
        for number in 0..100usize {
            subscriber
                .expect([b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n".to_vec(), bulk(&message[..number * 90])].concat());
        }
    });
}

/// A socket that sends a byte at a time.
struct ByteByByte(TcpStream);

impl Read for ByteByByte {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for ByteByByte {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_connection_may_send_single_bytes() {
    let server = TlsServer::start(&["--io-threads", "1"]);
    let Client(StreamOwned { conn, sock, .. }) = server.connect();
    let mut stream = StreamOwned::new(conn, ByteByByte(sock));
    stream.write_all(&request(&[b"ECHO", b"drop by drop"])).expect("a connection");
    let mut got = [0; 19];
    stream.read_exact(&mut got).expect("a reply");
    assert_eq!(&got, b"$12\r\ndrop by drop\r\n");
}

#[test]
fn the_first_part_of_a_request_is_acknowledged_before_the_rest_arrives() {
    let server = TlsServer::start(&[]);
    let mut client = server.connect().0;
    let socket = client.sock.try_clone().expect("the same socket");
    first_parts_are_acknowledged(&server.server, &mut client, &socket);
}

#[test]
fn requests_right_before_close_are_executed() {
    let server = TlsServer::start(&[]);
    // Many, as the requests come together with the handshake's end, or right after it.
    for _ in 0..30 {
        let mut client = server.connect();
        client.send(request(&[b"SET", b"last", b"word"]));
        client.send(request(&[b"ECHO", b"reply"]));
        client.0.conn.send_close_notify();
        client.0.flush().expect("a connection");
        client.expect("+OK\r\n$5\r\nreply\r\n");
        let mut rest = Vec::new();
        // With a goodbye, or the library would call it an error.
        assert_eq!(client.0.read_to_end(&mut rest).expect("a proper end"), 0);
    }
    let mut other = server.connect();
    other.ask(&[b"GET", b"last"], "$4\r\nword\r\n");
    other.ask(&[b"QUIT"], "+OK\r\n");
    assert_eq!(other.0.read_to_end(&mut Vec::new()).expect("a proper end"), 0);
}

#[test]
fn clients_need_a_trusted_certificate() {
    let server = TlsServer::start(&[]);
    let elsewhere = Authority::new("another authority");
    let stranger = elsewhere.certify("stranger");
    for (mode, without, with_wrong) in [("yes", false, false), ("optional", true, false), ("no", true, true)] {
        server.set(&["tls-auth-clients", mode]).expect("a mode");
        let lets_in = |identity| server.connect_with(server.config(identity)).is_let_in();
        assert_eq!(lets_in(None), without, "{mode}");
        assert_eq!(lets_in(Some(&stranger)), with_wrong, "{mode}");
        assert!(lets_in(Some(&server.client)), "{mode}");
    }
    let log = server.server.log();
    assert_eq!(log.matches("Error accepting a client connection: ").count(), 3, "{log}");
    assert!(log.contains("peer sent no certificates (addr=127.0.0.1:"), "{log}");
}

#[test]
fn revoked_certificates_are_refused() {
    for_workers(&[], |server| {
        let other = server.authority.certify("other");
        let lets_in = |identity: &Identity| server.connect_with(server.config(Some(identity))).is_let_in();
        let mut old = server.connect();
        old.ask(&[b"PING"], "+PONG\r\n");
        let list = server.authority.revoke(&[&server.client], 2100);
        for mode in ["yes", "optional"] {
            server.set(&["tls-auth-clients", mode]).expect("a mode");
            server.set(&["tls-crl-file", ""]).expect("no list");
            assert!(lets_in(&server.client), "{mode}");
            server.set(&["tls-crl-file", text(&list)]).expect("a list");
            assert_eq!([lets_in(&server.client), lets_in(&other)], [false, true], "{mode}");
        }
        assert!(server.server.log().contains("certificate: Revoked (addr=127.0.0.1:"));
        old.ask(&[b"PING"], "+PONG\r\n");
        // An outdated list still applies, also if it came without CONFIG SET.
        server.set(&["tls-auto-reload-interval", "1"]).expect("an interval");
        server.authority.revoke(&[&other], 2021);
        wait_until("the new list is in use", || [lets_in(&server.client), lets_in(&other)] == [true, false]);
        wait_until("its age is logged", || {
            server.server.log().contains("The certificate revocation list of 'CN=an authority' in")
        });
        // The list of another authority says nothing about these certificates.
        let elsewhere = Authority::new("another authority");
        let foreign = elsewhere.revoke(&[&elsewhere.certify("stranger")], 2100);
        server.set(&["tls-crl-file", text(&foreign)]).expect("a list");
        assert!(lets_in(&server.client) && lets_in(&other));
        let damaged = server.authority.data_dir.path().join("damaged.crl");
        std::fs::write(&damaged, "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n").expect("a file");
        for file in [Path::new("/nothing"), &server.authority.file(), &damaged] {
            assert!(server.set(&["tls-crl-file", text(file)]).is_err());
        }
        assert!(server.server.log().contains("lists must be complete and of version 2"));
        assert!(server.server.log().contains("Failed to load certificate revocation lists: /nothing: No such file"));
        assert!(lets_in(&server.client));
    });
}

#[test]
fn a_session_is_not_resumed_after_revocation() {
    let server = TlsServer::start(&[]);
    for version in [&version::TLS12, &version::TLS13] {
        server.set(&["tls-crl-file", ""]).expect("no list");
        let mut config = server.config_of(Some(&server.client), &[version]);
        config.resumption = Resumption::in_memory_sessions(4);
        for _ in 0..2 {
            server.connect_with(config.clone()).ask(&[b"PING"], "+PONG\r\n");
        }
        let list = server.authority.revoke(&[&server.client], 2100);
        server.set(&["tls-crl-file", text(&list)]).expect("a list");
        assert!(!server.connect_with(config).is_let_in(), "{version:?}");
    }
}

#[test]
fn revocation_applies_to_primaries_and_to_the_cluster_bus() {
    let primary = TlsServer::start(&[]);
    let bus_port = common::free_port();
    let bus = bus_port.to_string();
    let node = TlsServer::start(&["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus]);
    let replica = TlsServer::start(&["--tls-replication", "yes"]);
    let list = primary.authority.revoke(&[&primary.client], 2100);
    let ca = primary.authority.file();
    let Identity { certificate, key, .. } = primary.authority.certify("third");
    let client_files = ["tls-client-cert-file", text(&certificate), "tls-client-key-file", text(&key)];
    let files = ["tls-ca-cert-file", text(&ca), "tls-crl-file", text(&list)];
    replica.set(&[&files[..], &client_files].concat()).expect("files");
    let port = primary.port.to_string();
    let mut follower = replica.server.client();
    let _: () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).query(&mut follower).expect("a primary");
    let is_up = || replica.info("replication", "master_link_status") == "up";
    wait_until("the link is up", is_up);
    // The list then names the primary, which reconnecting shows.
    let Identity { certificate, key, .. } = &primary.client;
    primary.set(&["tls-cert-file", text(certificate), "tls-key-file", text(key)]).expect("a pair");
    let _: () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut follower).expect("no primary");
    let _: () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).query(&mut follower).expect("a primary");
    wait_until("the certificate is refused", || replica.server.log().contains("certificate: Revoked"));
    assert!(!is_up());
    replica.set(&["tls-crl-file", ""]).expect("no list");
    wait_until("the link is up again", is_up);
    // The other node verifies certificates of the bus whatever `tls-auth-clients` says.
    node.set(&["tls-auth-clients", "no"]).expect("a mode");
    let joins = || {
        let config = node.config_of(Some(&node.client), &[&version::TLS12]);
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut socket = TcpStream::connect(("127.0.0.1", bus_port)).expect("the bus");
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        tls.complete_io(&mut socket).is_ok() && !tls.is_handshaking()
    };
    assert!(joins());
    let list = node.authority.revoke(&[&node.client], 2100);
    node.set(&["tls-crl-file", text(&list)]).expect("a list");
    assert!(!joins());
}

#[test]
fn plain_text_on_the_tls_port_gets_an_error() {
    let server = TlsServer::start(&[]);
    let mut plain = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    plain.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").expect("a connection");
    let mut answer = Vec::new();
    // An alert would be taken for a reply.
    match plain.read_to_end(&mut answer) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        Ok(n) => assert_eq!(n, 0),
    }
    wait_until("the log tells", || {
        server.server.log().contains("this port takes TLS, and the client does not speak it")
    });

    let mut tls = server.connect();
    tls.0.sock = TcpStream::connect(("127.0.0.1", server.server.port())).expect("a connection");
    tls.0.sock.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    let error = tls.0.flush().expect_err("no TLS there");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    let mut plain = server.server.raw();
    plain.send(b"\x16\x03\x01\x02\x00\x01");
    plain.expect("-ERR this port does not take TLS\r\n");
    plain.expect_end();
    // A request may hold the same bytes.
    let mut plain = server.server.raw();
    plain.ask(&["ECHO", "\u{16}\u{3}\u{1}"], "$3\r\n\u{16}\u{3}\u{1}\r\n");
}

#[test]
fn aborted_handshakes_are_logged_once_and_take_little_memory() {
    let server = TlsServer::start(&["--io-threads", "2"]);
    // A complete one first, so that the buffers of the thread exist.
    server.connect().ask(&[b"PING"], "+PONG\r\n");
    let hello = {
        let mut bytes = Vec::new();
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(Arc::new(server.config(None)), name).expect("a client");
        tls.write_tls(&mut bytes).expect("a hello");
        bytes
    };
    let memory = || server.info("memory", "used_memory").parse::<usize>().expect("a number");
    let before = memory();
    let halves: Vec<TcpStream> = (0..1000)
        .map(|number| {
            let mut socket = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
            // Some have sent a part of their hello, some have got the server's.
            let sent = if number % 2 == 0 { hello.len() / 2 } else { hello.len() };
            socket.write_all(&hello[..sent]).expect("a connection");
            socket
        })
        .collect();
    let clients = || server.info("clients", "connected_clients").parse::<usize>().expect("a number");
    wait_until("all are there", || clients() > 1000);
    let mut client = server.connect();
    client.ask(&[b"PING"], "+PONG\r\n");
    let each = memory().saturating_sub(before) / halves.len();
    assert!(each < 24 * 1024, "{each} bytes each");
    drop(halves);
    wait_until("all are gone", || clients() <= 2);
    client.ask(&[b"PING"], "+PONG\r\n");
    wait_until("each is told", || server.server.log().matches("went away during the handshake").count() == 1000);
}

#[test]
fn garbage_in_place_of_records_closes_only_its_connection() {
    let server = TlsServer::start(&["--io-threads", "2"]);
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for round in 0..200 {
        let mut client = server.connect();
        client.ask(&[b"PING"], "+PONG\r\n");
        let mut noise: Vec<u8> = (0..round)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        if round % 2 == 0 {
            // A record that begins well.
            noise.splice(0..0, [0x17, 3, 3, 0, round as u8]);
        }
        client.0.sock.write_all(&noise).expect("a connection");
        // A record with the length of the greatest one, and more.
        let _ = client.0.sock.write_all(&[0x17, 3, 3, 0xff, 0xff, 0, 0]);
        let mut rest = Vec::new();
        assert!(client.0.sock.read_to_end(&mut rest).is_ok_and(|n| n < 100) || rest.len() < 100);
    }
    server.connect().ask(&[b"PING"], "+PONG\r\n");
}

#[test]
fn versions_and_suites_follow_the_settings() {
    let server = TlsServer::start(&[]);
    let lets_in = |version| server.connect_with(server.config_of(Some(&server.client), &[version])).is_let_in();
    server.set(&["tls-protocols", "TLSv1.2"]).expect("a version");
    assert_eq!((lets_in(&version::TLS12), lets_in(&version::TLS13)), (true, false));
    server.set(&["tls-protocols", "TLSv1.1 TLSv1.3"]).expect("versions");
    assert_eq!((lets_in(&version::TLS12), lets_in(&version::TLS13)), (false, true));
    server.set(&["tls-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"]).expect("a suite");
    let mut client = server.connect();
    client.ask(&[b"PING"], "+PONG\r\n");
    let suite = client.0.conn.negotiated_cipher_suite().expect("a suite").suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    for refused in [
        ["tls-protocols", "TLSv1"],
        ["tls-protocols", "nonsense"],
        ["tls-ciphers", "AES128-SHA256"],
        ["tls-ciphersuites", "AES"],
        ["tls-cert-file", "/nothing"],
        ["tls-ca-cert-file", ""],
    ] {
        let error = server.set(&refused).expect_err("refused").to_string();
        assert!(error.contains("Unable to update TLS configuration. Check server logs."), "{error}");
        assert!(server.connect().is_let_in(), "{refused:?} changed nothing");
    }
}

#[test]
fn the_tls_port_can_be_closed_and_opened() {
    let server = TlsServer::start(&[]);
    let mut client = server.connect();
    client.ask(&[b"PING"], "+PONG\r\n");
    server.set(&["tls-port", "0"]).expect("no port");
    assert!(TcpStream::connect(("127.0.0.1", server.port)).is_err());
    assert_eq!(server.info("tls", "tls_server_cert_serial"), "none");
    server.set(&["tls-port", &server.port.to_string()]).expect("a port");
    server.connect().ask(&[b"PING"], "+PONG\r\n");
    assert_eq!(server.info("server", "listener2"), format!("name=tls,bind=127.0.0.1,port={}", server.port));
    client.ask(&[b"PING"], "+PONG\r\n");
    // The other port, from this one.
    let port = server.server.port().to_string();
    client.ask(&[b"CONFIG", b"SET", b"port", b"0"], "+OK\r\n");
    assert!(TcpStream::connect(("127.0.0.1", server.server.port())).is_err());
    client.ask(&[b"CONFIG", b"SET", b"port", port.as_bytes()], "+OK\r\n");
}

#[test]
fn certificates_can_change_while_clients_are_connected() {
    for_workers(&[], |server| {
        let mut old = server.connect();
        let first = old.certificate();
        let other = server.authority.certify("other");
        let files = ["tls-cert-file", text(&other.certificate), "tls-key-file", text(&other.key)];
        assert!(server.set(&files[..2]).is_err(), "the key is another's");
        server.set(&files).expect("a pair");
        let second = server.connect().certificate();
        assert!(first != second);
        old.ask(&[b"PING"], "+PONG\r\n");
        // By themselves when the files change.
        let serial = server.info("tls", "tls_server_cert_serial");
        server.set(&["tls-auto-reload-interval", "1"]).expect("an interval");
        server.authority.certify("other");
        wait_until("the files are read again", || server.info("tls", "tls_server_cert_serial") != serial);
        let third = server.connect().certificate();
        assert!(second != third);
        wait_until("it is told", || server.server.log().contains("TLS materials reloaded successfully"));
        old.ask(&[b"PING"], "+PONG\r\n");
    });
}

#[test]
fn sessions_are_resumed_if_enabled() {
    let server = TlsServer::start(&[]);
    for (caching, expected) in [("yes", HandshakeKind::Resumed), ("no", HandshakeKind::Full)] {
        server.set(&["tls-session-caching", caching]).expect("a setting");
        for version in [&version::TLS12, &version::TLS13] {
            let mut config = server.config_of(Some(&server.client), &[version]);
            config.resumption = Resumption::in_memory_sessions(4);
            for round in 0..2 {
                let mut client = server.connect_with(config.clone());
                client.ask(&[b"PING"], "+PONG\r\n");
                let kind = client.0.conn.handshake_kind();
                let expected = if round == 0 { HandshakeKind::Full } else { expected };
                assert_eq!(kind, Some(expected), "{caching} {version:?}");
            }
        }
    }
}

#[test]
fn keys_migrate_over_tls_if_tls_cluster_is_set() {
    let target = TlsServer::start(&[]);
    let source = TlsServer::start(&["--tls-cluster", "yes"]);
    let ca = target.authority.file();
    let Identity { certificate, key, .. } = &target.client;
    let files =
        ["tls-ca-cert-file", text(&ca), "tls-client-cert-file", text(certificate), "tls-client-key-file", text(key)];
    source.set(&files).expect("files");
    let mut client = source.server.client();
    let value = pattern(3 * MB);
    let mut run = |words: &[&[u8]]| {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query::<redis::Value>(&mut client)
    };
    run(&[b"SET", b"key", &value]).expect("a value");
    run(&[b"SET", b"other", b"1"]).expect("a value");
    let port = target.port.to_string();
    let migrate: [&[u8]; 9] =
        [b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"20000", b"KEYS", b"key", b"other"];
    run(&migrate).expect("a migration");
    target.connect().ask(&[b"GET", b"key"], bulk(&value));
    let plain = target.server.port().to_string();
    run(&[b"SET", b"key", b"1"]).expect("a value");
    let error = run(&[b"MIGRATE", b"127.0.0.1", plain.as_bytes(), b"key", b"0", b"20000"]).expect_err("no TLS there");
    assert!(error.to_string().contains("error or timeout connecting"), "{error}");
    source.set(&["tls-cluster", "no"]).expect("a setting");
    run(&[b"MIGRATE", b"127.0.0.1", plain.as_bytes(), b"key", b"0", b"20000", b"REPLACE"]).expect("a migration");
}

#[test]
fn certificates_log_clients_in() {
    let server = TlsServer::start(&[]);
    let mut admin = server.server.client();
    let mut run =
        |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut admin).expect("a reply");
    let user = || {
        let mut client = server.connect();
        client.send(request(&[b"ACL", b"WHOAMI"]));
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.iter().filter(|byte| **byte == b'\n').count() < 2 {
            client.0.read_exact(&mut byte).expect("a reply");
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line).lines().last().unwrap_or_default().to_string()
    };
    run(&["ACL", "SETUSER", "client", "on", "+@all"]);
    run(&["ACL", "SETUSER", "urn:user:client", "on", "+acl"]);
    for (field, expected) in [("off", "default"), ("CN", "client"), ("URI", "urn:user:client")] {
        run(&["CONFIG", "SET", "tls-auth-clients-user", field]);
        assert_eq!(user(), expected);
    }
    // A client with a certificate need not authenticate.
    run(&["CONFIG", "SET", "requirepass", "secret"]);
    assert_eq!(user(), "urn:user:client");
    server
        .connect()
        .ask(&[b"GET", b"x"], "-NOPERM User urn:user:client has no permissions to run the 'get' command\r\n");
    run(&["CONFIG", "SET", "requirepass", ""]);
    run(&["ACL", "SETUSER", "urn:user:client", "off"]);
    assert_eq!(user(), "default");
    assert_eq!(server.info("stats", "acl_access_denied_tls_cert"), "1");
}

#[test]
fn a_replica_follows_over_tls() {
    let primary = TlsServer::start(&[]);
    let mut client = primary.connect();
    let value = pattern(2 * MB);
    client.ask(&[b"SET", b"before", &value], "+OK\r\n");
    let ca = primary.authority.file();
    let Identity { certificate, key, .. } = &primary.client;
    let replica = TlsServer::start(&["--tls-replication", "yes"]);
    let client_files = ["tls-client-cert-file", text(certificate), "tls-client-key-file", text(key)];
    replica.set(&[&["tls-ca-cert-file", text(&ca)], &client_files[..]].concat()).expect("files");
    let mut follower = replica.server.client();
    let port = primary.port.to_string();
    let _: () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).query(&mut follower).expect("a primary");
    wait_until("the link is up", || replica.info("replication", "master_link_status") == "up");
    client.ask(&[b"SET", b"after", &value], "+OK\r\n");
    client.ask(&[b"WAIT", b"1", b"20000"], ":1\r\n");
    for name in ["before", "after"] {
        let got: Vec<u8> = redis::cmd("GET").arg(name).query(&mut follower).expect("a value");
        assert!(got == value, "{name}");
    }
    let announced = primary.info("replication", "slave0");
    assert!(announced.contains(&format!("port={}", replica.port)), "{announced}");
    // A primary without TLS is not followed.
    replica.set(&["tls-replication", "no"]).expect("a setting");
    let _: () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut follower).expect("no primary");
    let _: () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).query(&mut follower).expect("a primary");
    wait_until("the link is down", || replica.info("replication", "master_link_status") == "down");
}

#[test]
fn missing_tls_files_prevent_startup() {
    let run = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kvick-server"))
            .args(["--port", "0", "--tls-port", "1"])
            .args(args)
            .output()
            .expect("the server's binary");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(run(&[]).contains("No tls-cert-file configured!"));
    let log = run(&["--tls-cert-file", "/nothing.crt", "--tls-key-file", "/nothing.key", "--tls-auth-clients", "no"]);
    assert!(log.contains("Failed to load certificate: /nothing.crt: No such file or directory"), "{log}");
    assert!(log.contains("Failed to configure TLS. Check logs for more info."), "{log}");
}

#[test]
fn scripts_are_debugged_over_tls_too() {
    for_workers(&[], |server| {
        for mode in [b"YES".as_slice(), b"SYNC"] {
            for version in [&version::TLS12, &version::TLS13] {
                let mut client = server.connect_with(server.config_of(Some(&server.client), &[version]));
                client.ask(&[b"SCRIPT", b"DEBUG", mode], "+OK\r\n");
                let stopped = "*2\r\n+* Stopped at 1, stop reason = step over\r\n+-> 1   return ARGV[1]\r\n";
                client.ask(&[b"EVAL", b"return ARGV[1]", b"0", b"value"], stopped);
                client.ask(&[b"print", b"ARGV"], "*1\r\n+<value> {value; }\r\n");
                client.ask(&[b"redis", b"echo", b"x"], "*2\r\n+<command> echo x\r\n+<reply> \"x\"\r\n");
                client.ask(&[b"continue"], "*1\r\n+<endsession>\r\n$5\r\nvalue\r\n");
                // A connection that just broke off would be an error.
                assert!(matches!(client.0.read(&mut [0]), Ok(0)));
            }
        }
    });
}

#[test]
fn metrics_are_served_over_tls_with_the_same_rules() {
    let port = free_port();
    let server = TlsServer::start(&["--metrics-port", &port.to_string(), "--metrics-tls", "yes"]);
    let scrape = |identity: Option<&Identity>| {
        let mut client = TlsServer::connect_to(port, server.config(identity));
        let mut reply = Vec::new();
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let sent = client.0.write_all(request).and_then(|()| client.0.read_to_end(&mut reply));
        sent.ok().map(|_| String::from_utf8_lossy(&reply).into_owned())
    };
    let is_page = |reply: Option<String>| {
        reply.is_some_and(|reply| reply.starts_with("HTTP/1.1 200 OK") && reply.ends_with('\n') && reply.len() > 10_000)
    };
    assert!(is_page(scrape(Some(&server.client))));
    assert!(!is_page(scrape(None)), "clients must present a certificate");
    // What is not TLS gets no reply.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    plain.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a connection that takes bytes");
    let mut reply = Vec::new();
    // The server may reset the connection, or close it after an alert.
    let _ = plain.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&reply));

    server.set(&["tls-auth-clients", "no"]).expect("it changes");
    assert!(is_page(scrape(None)));
    // The endpoint needs the certificates also if no other port does.
    server.set(&["tls-port", "0"]).expect("it changes");
    assert!(is_page(scrape(None)));
    server.set(&["metrics-tls", "no"]).expect("it changes");
    let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    plain.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").expect("a connection that takes bytes");
    let mut reply = String::new();
    plain.read_to_string(&mut reply).expect("a reply");
    assert!(reply.ends_with("ok\n"), "{reply}");
}

#[test]
fn connections_move_between_workers() {
    let server = TlsServer::start(&["--io-threads", "1"]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let end = SetOnDrop(&stop);
        for name in 0..10 {
            let (server, stop, rounds) = (&server, &stop, &rounds);
            scope.spawn(move || {
                let (mut client, key) = (server.connect(), format!("key:{name}"));
                // Larger than a record, so that it arrives in several.
                let value = vec![b'x'; 100_000];
                while !stop.load(Ordering::Relaxed) {
                    client.send(
                        [request(&[b"SET", key.as_bytes(), &value]), request(&[b"GET", key.as_bytes()])].concat(),
                    );
                    client.expect([b"+OK\r\n$100000\r\n", &value[..], b"\r\n"].concat());
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for workers in ["4", "1", "2", "4", "3", "1"] {
            server.set(&["io-threads", workers]).expect("a number of workers");
            let before = rounds.load(Ordering::Relaxed);
            wait_until("clients have gone on", || rounds.load(Ordering::Relaxed) > before + 30);
        }
        drop(end);
    });
    assert_ne!(server.info("cpu", "kvick_connections_moved"), "0");
}
