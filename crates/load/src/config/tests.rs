//! Tests of the configuration.

use super::*;
use proptest::prelude::*;

const KEYSPACE: &str = "[[workload.keyspace]]\n";

#[test]
fn defaults_are_valid() {
    let config = Config::parse(KEYSPACE).expect("a configuration");
    assert_eq!(config.workload.keyspace[0].commands.len(), 2);
    assert_eq!(config.duration_s(), 10.0);
}

#[test]
fn a_file_in_the_form_of_rpc_perf_is_understood() {
    let text = r#"
        [general]
        protocol = "resp"
        interval = 15
        duration = 300
        [target]
        endpoints = ["127.0.0.1:12321"]
        [client]
        threads = 4
        poolsize = 20
        concurrency = 8
        connect_timeout = 10000
        request_timeout = 1000
        [workload]
        threads = 1
        [workload.ratelimit]
        start = 10_000
        end = 100_000
        step = 10_000
        interval = 30
        ramp = "shuffled"
        on_ramp_completion = "mirror"
        [[workload.keyspace]]
        weight = 1
        klen = 32
        nkeys = 1_000_000
        vlen = 128
        vkind = "bytes"
        ttl = "15m"
        commands = [{ verb = "get", weight = 80 }, { verb = "set", weight = 20 }, { verb = "delete", weight = 0 }]
        [tls]
    "#;
    let config = Config::parse(text).expect("a configuration");
    assert_eq!(config.client.pipeline, 8);
    assert_eq!(config.workload.keyspace[0].ttl.map(|ttl| ttl.0.as_secs()), Some(900));
    assert_eq!(config.workload.ratelimit.expect("a rate").ramp, Ramp::Shuffled);
}

#[test]
fn errors_say_what_to_do() {
    for (text, words) in [
        ("", "[[workload.keyspace]]"),
        ("[client]\nthread = 1", "unknown field `thread`"),
        ("[general]\nwarmup = '5'", "write a number and a unit"),
        ("[general]\nprotocol = 'http'", "must be \"resp\""),
        ("[client]\nresp = 4", "must be 2 or 3"),
        ("[client]\npipeline = 0", "from 1 to"),
        ("[target]\ntopology = 'replicated'", "a primary and a replica"),
        ("[workload.ratelimit]\nstart = 5\nend = 10\n[[workload.keyspace]]", "add step"),
        ("[workload.ratelimit]\nstart = 0\n[[workload.keyspace]]", "above 0"),
        ("[[workload.keyspace]]\nnkeys = 0", "nkeys"),
        ("[[workload.keyspace]]\ncommands = [{ verb = 'get', weight = 0 }]", "weight above 0"),
        ("[[workload.keyspace]]\nvlen = { min = 1, max = 1_000_000_000_000 }", "64 MiB"),
        ("[check]\nkeys = 10", "check.keys must be at least"),
        ("[check]\n[target]\nendpoints = [\"a:1\", \"b:1\"]", "[check] reads one endpoint or a cluster"),
    ] {
        let error = Config::parse(text).expect_err(text).to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn durations_survive_being_written(ns in 0_u64..1_000_000_000_000) {
        let span = Span(std::time::Duration::from_nanos(ns));
        prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
    }

    #[test]
    fn any_text_is_a_configuration_or_an_error(text in "\\PC{0,200}") {
        let _ = Config::parse(&text);
        let _ = text.parse::<Span>();
    }

    #[test]
    fn a_configuration_survives_being_passed_to_a_process(
        threads in 1_usize..9, nkeys in 1_u64..9999, rate in 1.0..1e7,
    ) {
        let rate = format!("[workload.ratelimit]\nstart = {rate:?}");
        let text = format!("[client]\nthreads = {threads}\n{rate}\n{KEYSPACE}nkeys = {nkeys}");
        let config = Config::parse(&text).expect("a configuration");
        let json = serde_json::to_string(&config).expect("JSON");
        let back: Config = serde_json::from_str(&json).expect("the same configuration");
        prop_assert_eq!(serde_json::to_string(&back).expect("JSON"), json);
    }
}
