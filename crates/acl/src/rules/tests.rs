//! Tests of ACL rules.

use super::*;
use kvick_core::clients::default_user_name;
use proptest::prelude::*;

fn table() -> &'static Catalogue {
    crate::testing::catalogue()
}

fn reader() -> Reader<'static> {
    Reader { table: table(), all_channels: false }
}

/// Applies the rules to a new user.
fn make(rules: &[&str]) -> Result<User, RuleError> {
    let mut user = User::new(default_user_name(), false);
    let rules = join_selectors(rules.iter().map(|rule| rule.as_bytes())).expect("parentheses are closed");
    rules.iter().try_for_each(|rule| reader().apply(&mut user, rule)).map(|()| user)
}

fn printed(user: &User) -> String {
    String::from_utf8(user.rules()).expect("text")
}

/// Applies the rules, which are separated by blanks, to a new user and prints its rules.
fn shown(rules: &str) -> String {
    printed(&make(&rules.split(' ').collect::<Vec<_>>()).unwrap())
}

fn error(rule: &str) -> RuleError {
    make(&rule.split(' ').collect::<Vec<_>>()).expect_err(rule)
}

fn allows(user: &User, command: &str) -> bool {
    user.root.allows_command(table().original(command.as_bytes()).expect("a command").id)
}

#[test]
fn users_are_described_in_canonical_order() {
    let cases = [
        ("", "off resetchannels -@all"),
        ("on nopass allkeys allchannels allcommands", "on nopass ~* &* +@all"),
        ("ON NoPass ~a &c +GET", "on nopass ~a resetchannels &c -@all +get"),
        ("~a %R~b %w~c %rW~d", "off ~a %R~b %W~c ~d resetchannels -@all"),
        ("%R~a %W~a ~b ~b", "off ~a ~b resetchannels -@all"),
        ("db=3,1,3", "off resetchannels db=1,3 -@all"),
        ("db=1 db=2", "off resetchannels db=2 -@all"),
        ("db=1 alldbs", "off resetchannels -@all"),
        ("resetdbs", "off resetchannels resetdbs -@all"),
        ("+@all -@admin +config|get", "off resetchannels +@all -@admin +config|get"),
        ("+config|get +config", "off resetchannels -@all +config"),
        ("+config -config|set", "off resetchannels -@all +config -config|set"),
        ("+get -GET +get", "off resetchannels -@all +get"),
        ("+@READ -@read", "off resetchannels -@all -@read"),
        ("+select|0 +Select|A", "off resetchannels -@all +select|0 +select|a"),
        ("+select|0 -select", "off resetchannels -@all -select"),
        ("(~a +get) (&* db=1)", "off resetchannels -@all (~a resetchannels -@all +get) (&* db=1 -@all)"),
        ("(~a clearselectors", ""),
    ];
    for (rules, expected) in cases.into_iter().filter(|(_, expected)| !expected.is_empty()) {
        assert_eq!(shown(rules), expected, "{rules}");
    }
    assert_eq!(shown("on nopass ~* &* +@all (~a) db=1 reset"), shown(""));
    assert_eq!(shown("(~a) clearselectors"), shown(""));
}

#[test]
fn passwords_are_stored_as_digests() {
    let digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    assert_eq!(shown(">secret >secret"), format!("off #{digest} resetchannels -@all"));
    assert_eq!(shown(&format!("nopass #{digest}")), shown(">secret"));
    assert_eq!(shown(&format!(">secret !{digest} >a <a")), shown(""));
    assert_eq!(shown(">secret nopass resetpass"), shown(""));
    assert_eq!(error("<secret"), RuleError::NoSuchPassword);
    assert_eq!(error("#secret"), RuleError::BadDigest);
    assert_eq!(error("!secret"), RuleError::BadDigest);
}

#[test]
fn invalid_rules_are_refused() {
    let cases = [
        ("what", RuleError::Syntax),
        ("%~a", RuleError::Syntax),
        ("%", RuleError::Syntax),
        ("%RR~a", RuleError::Syntax),
        ("%RX~a", RuleError::Syntax),
        ("~a\tb", RuleError::Syntax),
        ("&a\tb", RuleError::Syntax),
        ("~* ~a", RuleError::KeyAfterAll),
        ("~* %R~a", RuleError::KeyAfterAll),
        ("&* &a", RuleError::ChannelAfterAll),
        ("+nosuch", RuleError::UnknownCommand),
        ("-nosuch", RuleError::UnknownCommand),
        ("+", RuleError::UnknownCommand),
        ("+@nosuch", RuleError::UnknownCommand),
        ("+config|nosuch", RuleError::UnknownCommand),
        ("-select|0", RuleError::UnknownCommand),
        ("+config|get|x", RuleError::FirstArgOfSubcommand),
        ("+select|", RuleError::Syntax),
        ("db=", RuleError::Syntax),
        ("db=1,", RuleError::Syntax),
        ("db=,1", RuleError::Syntax),
        ("db=1,,2", RuleError::Syntax),
        ("db=x", RuleError::Syntax),
        ("db=-", RuleError::Syntax),
        ("db=1x", RuleError::Syntax),
        ("db=-1", RuleError::DatabaseOutOfRange),
        ("db=2147483648", RuleError::DatabaseOutOfRange),
        ("db=99999999999999999999", RuleError::DatabaseOutOfRange),
        ("(on)", RuleError::Syntax),
        ("(>secret)", RuleError::Syntax),
        ("((~a))", RuleError::Syntax),
    ];
    for (rule, expected) in cases {
        assert_eq!(error(rule), expected, "{rule}");
    }
    assert_eq!(shown("db=+1,-0,2147483647"), "off resetchannels db=0,1,2147483647 -@all");
}

#[test]
fn unclosed_parentheses_are_refused() {
    let words = |text: &'static str| join_selectors(text.split(' ').map(str::as_bytes));
    assert_eq!(words("a (b c) (d e").unwrap_err(), 3);
    assert_eq!(words("(").unwrap_err(), 0);
    assert_eq!(words("( a  ) b").unwrap(), [&b"( a  )"[..], b"b"]);
}

#[test]
fn a_container_command_includes_its_subcommands() {
    let user = make(&["+config", "-config|set"]).unwrap();
    assert_eq!(["config", "config|get", "config|set"].map(|name| allows(&user, name)), [true, true, false]);
    let user = make(&["+config|get"]).unwrap();
    assert_eq!(["config", "config|get", "config|set"].map(|name| allows(&user, name)), [false, true, false]);
}

#[test]
fn first_arguments_can_be_allowed_without_the_command() {
    let user = make(&["+select|0"]).unwrap();
    let select = table().original(b"select").unwrap().id;
    assert!(user.root.allows_first_arg(select, b"0") && !user.root.allows_first_arg(select, b"1"));
    assert!(!allows(&user, "select"));
    assert!(error("+select|a\tb") == RuleError::Syntax, "it could not be written down");
}

fn word() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["a", "b*", "c?", "[x-z]", "\\*", "é", "("]).prop_map(str::to_string)
}

fn command() -> impl Strategy<Value = String> {
    let all: Vec<String> = table().all().iter().map(|command| command.full_name.clone()).collect();
    proptest::sample::select(all)
}

fn category() -> impl Strategy<Value = String> {
    let all: Vec<String> = Categories::all().names().chain(["all".to_string()]).collect();
    proptest::sample::select(all)
}

/// A rule that is valid in any selector, except that it may be a pattern after the one that matches everything.
fn selector_rule() -> impl Strategy<Value = String> {
    let sign = || prop_oneof![Just('+'), Just('-')];
    prop_oneof![
        (sign(), command()).prop_map(|(sign, name)| format!("{sign}{name}")),
        (sign(), category()).prop_map(|(sign, name)| format!("{sign}@{name}")),
        (0..4u8).prop_map(|db| format!("+select|{db}")),
        (prop_oneof![Just("~"), Just("%R~"), Just("%W~"), Just("%RW~"), Just("&")], word())
            .prop_map(|(prefix, pattern)| format!("{prefix}{pattern}")),
        proptest::collection::vec(0..20u8, 1..4)
            .prop_map(|dbs| { format!("db={}", dbs.iter().map(u8::to_string).collect::<Vec<_>>().join(",")) }),
        proptest::sample::select(vec![
            "allkeys",
            "resetkeys",
            "allchannels",
            "resetchannels",
            "alldbs",
            "resetdbs",
            "~*",
            "&*",
            "nocommands",
        ])
        .prop_map(str::to_string),
    ]
}

fn rule() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => selector_rule(),
        1 => proptest::collection::vec(selector_rule(), 0..5).prop_map(|rules| format!("({})", rules.join(" "))),
        1 => proptest::sample::select(vec![
            "on", "off", "nopass", "resetpass", "reset", "clearselectors", ">a", ">b", "<a",
            "#2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
        ])
        .prop_map(str::to_string),
    ]
}

proptest! {
    #[test]
    fn a_user_description_recreates_the_user(
        rules in proptest::collection::vec(rule(), 0..20),
        all_channels: bool,
    ) {
        let reader = Reader { table: table(), all_channels };
        let mut user = User::new(default_user_name(), all_channels);
        for rule in &rules {
            let before = user.clone();
            if reader.apply(&mut user, rule.as_bytes()).is_err() {
                user = before;
            }
        }
        let line = printed(&user);
        let mut recreated = User::new(default_user_name(), all_channels);
        for rule in join_selectors(line.split(' ').map(str::as_bytes)).expect("parentheses are closed") {
            reader.apply(&mut recreated, &rule).expect("what is written down is right");
        }
        prop_assert_eq!(&printed(&recreated), &line);
        prop_assert_eq!(recreated.selectors.len(), user.selectors.len());
        for (one, other) in user.all_selectors().zip(recreated.all_selectors()) {
            for id in 0..table().all().len() as u32 + 100 {
                prop_assert_eq!(one.allows_command(id), other.allows_command(id), "command {}", id);
            }
            prop_assert_eq!(&one.first_args, &other.first_args);
            prop_assert_eq!((one.all_keys, &one.keys), (other.all_keys, &other.keys));
            prop_assert_eq!((one.all_channels, &one.channels), (other.all_channels, &other.channels));
            prop_assert_eq!(&one.databases, &other.databases);
        }
    }
}
