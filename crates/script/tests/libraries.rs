//! The libraries on values that nobody thought of: what they wrote they read again, and nothing ends the process.

use kvick_resp::{Reply, Version};
use kvick_script::{Host, Identity, Kind, LogLevel, Propagation, Settings, Vm};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

struct NoHost;

impl Host for NoHost {
    fn call(&mut self, _: &[&[u8]], _: Version, out: &mut Vec<u8>) {
        out.extend_from_slice(b"+OK\r\n");
    }

    fn may_call(&mut self, _: &[&[u8]]) -> Option<bool> {
        None
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn set_propagation(&mut self, _: Propagation) {}

    fn interrupted(&mut self) -> Option<String> {
        Some("ERR ended".to_string())
    }
}

fn machine(memory_max: Option<usize>) -> Vm {
    let identity = Identity {
        server_name: "valkey".to_string(),
        version: "9.1.2".to_string(),
        redis_version: "7.2.4".to_string(),
    };
    Vm::new(Kind::Scripts, &identity, Settings { memory_max, ..Settings::default() }).unwrap()
}

/// Runs a script with one argument and answers its reply, or its error as an error reply.
fn run(vm: &mut Vm, script: &[u8], argument: &[u8]) -> Vec<u8> {
    let digest = b"0123456789012345678901234567890123456789";
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Version::Resp3);
    let outcome = vm
        .compile_script(digest, script)
        .and_then(|()| vm.run_script(digest, std::iter::empty(), std::iter::once(argument), &mut NoHost, &mut reply));
    if let Err(failure) = outcome {
        reply.error(failure.text());
    }
    vm.forget_script(digest);
    out
}

/// A value of Lua, as code.
fn value() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        any::<i32>().prop_map(|n| n.to_string()),
        (-1e9..1e9_f64).prop_map(|n| format!("{n:.3}")),
        any::<i64>().prop_map(|n| (n as f64).to_string()),
    ];
    let string = vec(any::<u8>(), 0..40).prop_map(|bytes| quoted(&bytes));
    let leaf = prop_oneof![number, string, Just("true".to_string()), Just("false".to_string())];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(|items| format!("{{{}}}", items.join(", "))),
            btree_map("[a-z]{1,8}", inner, 0..8).prop_map(|pairs| {
                let pairs = pairs.iter().map(|(key, value)| format!("['{key}'] = {value}"));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }),
        ]
    })
}

fn quoted(bytes: &[u8]) -> String {
    let escaped = bytes.iter().map(|byte| format!("\\{byte:03}"));
    format!("'{}'", escaped.collect::<String>())
}

/// Whether two values are the same, numbers up to what the precision of JSON keeps.
const SAME: &str = "
    local function same(a, b)
        if type(a) ~= type(b) then return false end
        if type(a) == 'number' then return a == b or math.abs(a - b) <= math.abs(a) * 1e-12 end
        if type(a) ~= 'table' then return a == b end
        for k, v in pairs(a) do if not same(v, b[k]) then return false end end
        for k in pairs(b) do if a[k] == nil then return false end end
        return true
    end ";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn json_round_trips(value in value()) {
        let script = format!("{SAME} local v = {value} return same(v, cjson.decode(cjson.encode(v)))");
        prop_assert_eq!(run(&mut machine(None), script.as_bytes(), b""), b":1\r\n", "{}", value);
    }

    #[test]
    fn message_pack_round_trips(value in value()) {
        let script = format!("{SAME} local v = {value} return same(v, cmsgpack.unpack(cmsgpack.pack(v)))");
        prop_assert_eq!(run(&mut machine(None), script.as_bytes(), b""), b":1\r\n", "{}", value);
    }

    #[test]
    fn structs_round_trip(
        numbers in (any::<i8>(), any::<u16>(), any::<i32>(), any::<f32>(), -(1_i64 << 53)..1 << 53),
        string in "[a-z]{0,20}",
        order in "[<>]?(![248]?)?",
    ) {
        let (a, b, c, d, e) = numbers;
        prop_assume!(d.is_finite());
        let d = f64::from(d);
        let script = format!(
            "local format = '{order}bHifli5sbc0'
             local values = {{struct.unpack(format, struct.pack(format, {a}, {b}, {c}, {d:?}, {e}, {c}, '{string}', \
             {len}, '{string}'))}}
             local expected = {{{a}, {b}, {c}, {d:?}, {e}, {c}, '{string}', '{string}'}}
             for i = 1, 8 do if values[i] ~= expected[i] then return i end end
             return 'same'",
            len = string.len(),
        );
        let reply = run(&mut machine(None), script.as_bytes(), b"");
        prop_assert_eq!(String::from_utf8_lossy(&reply), "$4\r\nsame\r\n", "{}", script);
    }

    #[test]
    fn arbitrary_bytes_are_handled(bytes in vec(prop_oneof![any::<u8>(), 0x80..0xa0_u8, 0xc0..0xe0_u8], 0..200)) {
        let mut vm = machine(None);
        for call in ["cmsgpack.unpack, ARGV[1]", "cjson.decode, ARGV[1]", "struct.unpack, ARGV[1], ARGV[1]",
            "struct.unpack, 'bhilfdsi7', ARGV[1]", "struct.size, ARGV[1]", "struct.pack, ARGV[1], 1, 2, 'c'",
            "loadstring, ARGV[1]"]
        {
            let script = format!("return select('#', pcall({call}))");
            prop_assert!(run(&mut vm, script.as_bytes(), &bytes).starts_with(b":"), "{}", call);
        }
    }

    #[test]
    fn arbitrary_json_tokens_are_parsed_or_rejected(
        tokens in vec(prop_oneof![
            Just("{"), Just("}"), Just("["), Just("]"), Just(","), Just(":"), Just("\"a\""), Just("\"\\u0041\\n\""),
            Just("1"), Just("-0x1p4"), Just("null"), Just("tru"), Just("nan"), Just(" "), Just("\0"),
        ], 0..40)
    ) {
        let script = b"return select('#', pcall(cjson.decode, ARGV[1]))";
        let reply = run(&mut machine(None), script, tokens.concat().as_bytes());
        prop_assert_eq!(reply, b":2\r\n");
    }
}

/// Runs out of memory at very many places, and each time there is an error, and the machine can be used on.
#[test]
fn allocation_failure_anywhere_is_an_error() {
    let script = br#"
        local t = cjson.decode('{"a":[1,2,3,{"b":"c"}],"d":"e\u00e9","f":null}')
        t.f = cmsgpack.unpack(cmsgpack.pack({1, 'two', {three = 3}}))
        local s = struct.pack('>bHs', 1, 2, 'abc')
        local r = redis.call('set', 'key', s)
        local ok, err = pcall(error, {err = 'x'})
        local co = coroutine.wrap(function(...) coroutine.yield(redis.sha1hex(s)) end)
        return {cjson.encode(t), r, co(), ('x'):rep(100), loadstring('return 1')(), redis.error_reply('a b'), err}"#;
    let mut vm = machine(None);
    let whole = run(&mut vm, script, b"");
    assert!(whole.starts_with(b"*7\r\n"), "{}", String::from_utf8_lossy(&whole));
    vm.collect();
    let empty = machine(None).memory();
    let (mut failed, mut succeeded) = (0, 0);
    for limit in (empty..empty + 20_000).step_by(50) {
        let mut vm = machine(Some(limit));
        let reply = run(&mut vm, script, b"");
        match reply.first() {
            Some(b'-') => {
                failed += 1;
                let text = String::from_utf8_lossy(&reply);
                assert!(text.contains("not enough memory"), "{limit}: {text}");
            }
            _ => {
                succeeded += 1;
                assert_eq!(reply, whole);
            }
        }
        vm.collect();
        assert!(vm.memory() <= limit.max(empty + 1000));
    }
    assert!(failed > 20 && succeeded > 20, "{failed} {succeeded}");
}
