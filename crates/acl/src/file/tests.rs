//! Tests of user lines and ACL files.

use super::*;

fn parse_text(text: &str) -> Result<Vec<String>, String> {
    let table = crate::testing::catalogue();
    let users = parse(text.as_bytes(), "f", Reader { table, all_channels: false })?;
    Ok(users.values().map(|user| String::from_utf8(user.line()).unwrap()).collect())
}

#[test]
fn an_acl_file_has_one_line_per_user() {
    let users = parse_text("user bob on nopass ~* +get\r\n\n  \t\nuser al (~a +set)  +get  \n").unwrap();
    assert_eq!(
        users,
        ["al off resetchannels -@all +get (~a resetchannels -@all +set)", "bob on nopass ~* resetchannels -@all +get"]
    );
    assert!(parse_text("").unwrap().is_empty());
}

#[test]
fn all_errors_of_a_file_are_reported_together() {
    let end = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
    let cases = [
        ("hello", "f:1 should start with user keyword followed by the username. "),
        ("\nuser", "f:2 should start with user keyword followed by the username. "),
        ("user a\tb on", "'f:1: username 'a\tb' contains invalid characters. "),
        ("user a\nuser a", "WARNING: Duplicate user 'a' found on line 2. "),
        ("user a (on", "f:1: Unmatched parenthesis in selector definition."),
        (
            "user a +x +y",
            "f:1: Error in applying operation '+x': Unknown command or category name in ACL. f:1: Error in applying \
             operation '+y': Unknown command or category name in ACL. ",
        ),
        ("user a >secret what which", "f:1: Syntax error. "),
        ("user a what\nuser b which", "f:1: Syntax error. f:2: Syntax error. "),
    ];
    for (text, error) in cases {
        assert_eq!(parse_text(text).unwrap_err(), format!("{error}{end}"), "{text}");
    }
}

#[test]
fn a_saved_file_loads_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.acl");
    let table = crate::testing::catalogue();
    let reader = Reader { table, all_channels: false };
    let lines = "user default on nopass ~* &* +@all\nuser eve on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe\
                 97bf527a25b %R~k resetchannels &c db=1,2 -@all +get +select|1 (~* &* +@all)\n";
    let users = parse(lines.as_bytes(), "f", reader).unwrap();
    save(&path, &users.into_values().collect::<Vec<_>>()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
    assert_eq!(load(&path, reader).unwrap().len(), 2);
    let missing = load(&dir.path().join("none"), reader).unwrap_err();
    assert!(missing.ends_with("No such file or directory"), "{missing}");
}

#[test]
fn a_configuration_lists_each_user_once_without_passwords() {
    let table = crate::testing::catalogue();
    let reader = Reader { table, all_channels: false };
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let mut lines = vec![UserLine::read(&words("bob on >x +nosuch"), &[], reader).unwrap()];
    let refused = |line: &str, lines: &[UserLine]| UserLine::read(&words(line), lines, reader).unwrap_err().to_string();
    assert!(refused("bob", &lines).contains("Duplicate user"));
    assert!(refused("al (on", &lines).contains("Unmatched parenthesis"));
    let text = refused("al on <secret", &lines);
    assert!(text.contains("does not exist") && !text.contains("secret"), "{text}");
    assert_eq!(
        make_users(&lines, reader).unwrap_err(),
        "Error loading ACL rule '+nosuch' for the user named 'bob': Unknown command or category name in ACL"
    );
    lines.clear();
    lines.push(UserLine::read(&words("bob on ( ~a +get )"), &[], reader).unwrap());
    assert_eq!(make_users(&lines, reader).unwrap()[0].selectors.len(), 1);
}
