//! The documented arguments of CLIENT LIST and CLIENT KILL: the filters, with the reference's order and versions, which
//! differ between the two.

use kvick_commands::spec::Arg;

/// The arguments of CLIENT LIST.
pub const LIST: &[Arg] = &[
    Arg::one_of(
        "client-type",
        &[
            Arg::word("normal", "NORMAL"),
            Arg::word("master", "MASTER"),
            Arg::word("replica", "REPLICA"),
            Arg::word("pubsub", "PUBSUB"),
        ],
    )
    .token("TYPE")
    .optional()
    .since("5.0.0"),
    Arg::integer("client-id").token("ID").optional().multiple().since("6.2.0"),
    Arg::string("username").token("USER").optional().since("8.1.0"),
    Arg::string("addr").token("ADDR").display("ip:port").optional().since("8.1.0"),
    Arg::string("laddr").token("LADDR").display("ip:port").optional().since("8.1.0"),
    Arg::one_of("skipme", &[Arg::word("yes", "YES"), Arg::word("no", "NO")]).token("SKIPME").optional().since("8.1.0"),
    Arg::integer("maxage").token("MAXAGE").optional().since("8.1.0"),
    Arg::string("name").token("NAME").optional().since("9.0.0"),
    Arg::integer("idle").token("IDLE").optional().since("9.0.0"),
    Arg::string("flags").token("FLAGS").optional().since("9.0.0"),
    Arg::string("lib-name").token("LIB-NAME").optional().since("9.0.0"),
    Arg::string("lib-ver").token("LIB-VER").optional().since("9.0.0"),
    Arg::integer("db").token("DB").optional().since("9.0.0"),
    Arg::string("capa").token("CAPA").optional().since("9.0.0"),
    Arg::string("ip").token("IP").optional().since("9.0.0"),
    Arg::one_of(
        "not-client-type",
        &[
            Arg::word("normal", "NORMAL"),
            Arg::word("master", "MASTER"),
            Arg::word("replica", "REPLICA"),
            Arg::word("pubsub", "PUBSUB"),
        ],
    )
    .token("NOT-TYPE")
    .optional()
    .since("9.0.0"),
    Arg::integer("not-client-id").token("NOT-ID").optional().multiple().since("9.0.0"),
    Arg::string("not-username").token("NOT-USER").optional().since("9.0.0"),
    Arg::string("not-addr").token("NOT-ADDR").display("ip:port").optional().since("9.0.0"),
    Arg::string("not-laddr").token("NOT-LADDR").display("ip:port").optional().since("9.0.0"),
    Arg::string("not-name").token("NOT-NAME").optional().since("9.0.0"),
    Arg::string("not-flags").token("NOT-FLAGS").optional().since("9.0.0"),
    Arg::string("not-lib-name").token("NOT-LIB-NAME").optional().since("9.0.0"),
    Arg::string("not-lib-ver").token("NOT-LIB-VER").optional().since("9.0.0"),
    Arg::integer("not-db").token("NOT-DB").optional().since("9.0.0"),
    Arg::string("not-capa").token("NOT-CAPA").optional().since("9.0.0"),
    Arg::string("not-ip").token("NOT-IP").optional().since("9.0.0"),
];

/// The arguments of CLIENT KILL.
pub const KILL: &[Arg] = &[Arg::one_of(
    "filter",
    &[
        Arg::string("old-format").display("ip:port").deprecated_since("2.8.12"),
        Arg::one_of(
            "new-format",
            &[
                Arg::integer("client-id").token("ID").optional().multiple().since("2.8.12"),
                Arg::one_of(
                    "client-type",
                    &[
                        Arg::word("normal", "NORMAL"),
                        Arg::word("master", "MASTER").since("3.2.0"),
                        Arg::word("primary", "PRIMARY").since("8.0.0"),
                        Arg::word("slave", "SLAVE"),
                        Arg::word("replica", "REPLICA").since("5.0.0"),
                        Arg::word("pubsub", "PUBSUB"),
                    ],
                )
                .token("TYPE")
                .optional()
                .since("2.8.12"),
                Arg::string("username").token("USER").optional(),
                Arg::string("addr").token("ADDR").display("ip:port").optional(),
                Arg::string("laddr").token("LADDR").display("ip:port").optional().since("6.2.0"),
                Arg::one_of("skipme", &[Arg::word("yes", "YES"), Arg::word("no", "NO")]).token("SKIPME").optional(),
                Arg::integer("maxage").token("MAXAGE").optional().since("8.0.0"),
                Arg::string("name").token("NAME").optional().since("9.0.0"),
                Arg::integer("idle").token("IDLE").optional().since("9.0.0"),
                Arg::string("flags").token("FLAGS").optional().since("9.0.0"),
                Arg::string("lib-name").token("LIB-NAME").optional().since("9.0.0"),
                Arg::string("lib-ver").token("LIB-VER").optional().since("9.0.0"),
                Arg::integer("db").token("DB").optional().since("9.0.0"),
                Arg::string("capa").token("CAPA").optional().since("9.0.0"),
                Arg::string("ip").token("IP").optional().since("9.0.0"),
                Arg::one_of(
                    "not-client-type",
                    &[
                        Arg::word("normal", "NORMAL"),
                        Arg::word("master", "MASTER"),
                        Arg::word("primary", "PRIMARY"),
                        Arg::word("slave", "SLAVE"),
                        Arg::word("replica", "REPLICA"),
                        Arg::word("pubsub", "PUBSUB"),
                    ],
                )
                .token("NOT-TYPE")
                .optional()
                .since("9.0.0"),
                Arg::integer("not-client-id").token("NOT-ID").optional().multiple().since("9.0.0"),
                Arg::string("not-username").token("NOT-USER").optional().since("9.0.0"),
                Arg::string("not-addr").token("NOT-ADDR").display("ip:port").optional().since("9.0.0"),
                Arg::string("not-laddr").token("NOT-LADDR").display("ip:port").optional().since("9.0.0"),
                Arg::string("not-name").token("NOT-NAME").optional().since("9.0.0"),
                Arg::string("not-flags").token("NOT-FLAGS").optional().since("9.0.0"),
                Arg::string("not-lib-name").token("NOT-LIB-NAME").optional().since("9.0.0"),
                Arg::string("not-lib-ver").token("NOT-LIB-VER").optional().since("9.0.0"),
                Arg::integer("not-db").token("NOT-DB").optional().since("9.0.0"),
                Arg::string("not-capa").token("NOT-CAPA").optional().since("9.0.0"),
                Arg::string("not-ip").token("NOT-IP").optional().since("9.0.0"),
            ],
        )
        .multiple(),
    ],
)];
