//! Describes a program's command line once, and renders it as the output of `--help`, as a manual page and as
//! completions for shells.

mod completion;
mod manual;

/// A program's command line.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// The name of the program.
    pub program: &'static str,
    /// What it is, in a few words without a full stop.
    pub summary: &'static str,
    /// The forms of its arguments, without the name of the program.
    pub synopses: &'static [&'static str],
    /// Paragraphs that explain them.
    pub description: &'static [&'static str],
    /// The options.
    pub options: &'static [Option],
    /// Command lines.
    pub examples: &'static [&'static str],
    /// Other programs with a manual page in section 1.
    pub see_also: &'static [&'static str],
}

/// An option of a program.
#[derive(Clone, Copy, Debug)]
pub struct Option {
    /// Its names, such as `-v` and `--version`.
    pub names: &'static [&'static str],
    /// The name of its value; empty if it has none.
    pub value: &'static str,
    /// What it does: a sentence.
    pub text: &'static str,
}

/// A shell with completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shell {
    /// GNU Bash.
    Bash,
    /// Z shell.
    Zsh,
    /// fish.
    Fish,
}

/// A form of the description for other programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A manual page, in roff with the macros of man(7).
    Manual,
    /// Completions.
    Completion(Shell),
}

impl Form {
    /// The form of this name: `man`, `bash`, `zsh` or `fish`.
    pub fn named(name: &str) -> std::option::Option<Form> {
        Some(match name {
            "man" => Form::Manual,
            "bash" => Form::Completion(Shell::Bash),
            "zsh" => Form::Completion(Shell::Zsh),
            "fish" => Form::Completion(Shell::Fish),
            _ => return None,
        })
    }
}

/// Columns of the text of `--help`.
const WIDTH: usize = 80;

impl Usage {
    /// The text of a form. `version` is the program's, `directives` are configuration directives, which are options
    /// too.
    pub fn render(&self, form: Form, version: &str, directives: &[&str]) -> String {
        match form {
            Form::Manual => self.manual(version),
            Form::Completion(shell) => self.completion(shell, directives),
        }
    }

    /// The forms of the arguments, each on a line.
    pub fn synopsis(&self) -> String {
        let mut text = String::new();
        for (number, form) in self.synopses.iter().enumerate() {
            let prefix = if number == 0 { "Usage: " } else { "       " };
            text += format!("{prefix}{} {form}", self.program).trim_end();
            text.push('\n');
        }
        text
    }

    /// The output of `--help`.
    pub fn help(&self) -> String {
        let mut text = self.synopsis();
        for paragraph in self.description {
            text.push('\n');
            push_wrapped(&mut text, paragraph, 0);
        }
        text += "\nOptions:\n";
        for option in self.options {
            text += &format!("  {}\n", option.form());
            push_wrapped(&mut text, option.text, 10);
        }
        if !self.examples.is_empty() {
            text += "\nExamples:\n";
        }
        self.examples.iter().for_each(|example| text += &format!("  {example}\n"));
        text
    }
}

/// What the options that all programs have in common print: `-h`, `--help`, and `--print FORM`, with which packages
/// are made.
pub fn answer(usage: &Usage, args: &[String], version: &str) -> std::option::Option<String> {
    match args {
        [arg] if arg == "-h" || arg == "--help" => Some(usage.help()),
        [arg, form] if arg == "--print" => Form::named(form).map(|form| usage.render(form, version, &[])),
        _ => None,
    }
}

impl Option {
    /// The names and the value.
    fn form(&self) -> String {
        let names = self.names.join(", ");
        if self.value.is_empty() { names } else { format!("{names} <{}>", self.value) }
    }
}

/// Appends a paragraph in lines of limited width, each behind some spaces.
fn push_wrapped(text: &mut String, paragraph: &str, indent: usize) {
    let mut columns = 0;
    for word in paragraph.split_whitespace() {
        if columns > 0 && columns + 1 + word.chars().count() > WIDTH {
            text.push('\n');
            columns = 0;
        }
        if columns == 0 {
            text.extend(std::iter::repeat_n(' ', indent));
            columns = indent;
        } else {
            text.push(' ');
            columns += 1;
        }
        text.push_str(word);
        columns += word.chars().count();
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const EXAMPLE: Usage = Usage {
        program: "example",
        summary: "shows how",
        synopses: &["[file]", "-v | --version"],
        description: &["Reads a file. It's \"quoted\" and has a back\\slash."],
        options: &[
            Option { names: &["-v", "--version"], value: "", text: "Prints the version." },
            Option { names: &["--test"], value: "megabytes", text: "Tests memory; what's wrong is reported." },
        ],
        examples: &["example -v"],
        see_also: &["other"],
    };

    #[test]
    fn help_shows_everything_in_lines_of_limited_width() {
        let help = EXAMPLE.help();
        assert!(help.starts_with("Usage: example [file]\n       example -v | --version\n\nReads a file."), "{help}");
        assert!(help.contains("\n  -v, --version\n          Prints the version.\n  --test <megabytes>\n"), "{help}");
        assert!(help.ends_with("\nExamples:\n  example -v\n"), "{help}");
        let mut wrapped = String::new();
        push_wrapped(&mut wrapped, &"word ".repeat(100), 10);
        assert!(wrapped.lines().all(|line| line.starts_with("          word") && line.len() <= WIDTH));
        assert_eq!(wrapped.matches("word").count(), 100);
    }

    #[test]
    fn forms_have_names() {
        let forms = ["man", "bash", "zsh", "fish"].map(Form::named);
        let shells = [Shell::Bash, Shell::Zsh, Shell::Fish].map(|shell| Some(Form::Completion(shell)));
        assert_eq!((forms[0], &forms[1..]), (Some(Form::Manual), &shells[..]));
        assert_eq!(Form::named("tcsh"), None);
    }
}
