//! The command line, for `--help`, the manual page and completions.

use kvick_config::Config;
use kvick_usage::{Form, Option, Usage};

/// The command line.
pub const USAGE: Usage = Usage {
    program: "kvick-server",
    summary: "in-memory data store for users of Valkey and Redis",
    synopses: &[
        "[/path/to/kvick.conf] [--directive value ...] [-]",
        "-v | --version",
        "-h | --help",
        "--test-memory <megabytes>",
        "--check-system",
    ],
    description: &[
        "Without arguments, the server starts with its defaults on port 6379. Otherwise it reads the configuration \
         file, then standard input if \"-\" is the first or the last argument, then the directives of the command \
         line. Later values override earlier ones. Configuration files of Valkey and Redis work unchanged; kvick.conf \
         explains every directive.",
    ],
    options: &[
        Option { names: &["-v", "--version"], value: "", text: "Prints the version." },
        Option { names: &["-h", "--help"], value: "", text: "Prints this text." },
        Option {
            names: &["--test-memory"],
            value: "megabytes",
            text: "Writes patterns to this amount of memory, reads them back, and reports errors.",
        },
        Option {
            names: &["--check-system"],
            value: "",
            text: "Reports settings of this machine that make the server slow or unreliable, and how to change them.",
        },
    ],
    examples: &[
        "kvick-server /etc/kvick/kvick.conf",
        "kvick-server --port 7777 --io-threads 4",
        "kvick-server /etc/kvick/kvick.conf --loglevel verbose",
        "echo 'port 7777' | kvick-server -",
    ],
    see_also: &["kvick-check-rdb", "kvick-check-aof"],
};

/// The output of `--print`: a manual page (`man`), or completions of options and directives (`bash`, `zsh`, `fish`).
pub fn printed(form: &str, version: &str) -> std::option::Option<String> {
    Some(USAGE.render(Form::named(form)?, version, &Config::directive_names()))
}
