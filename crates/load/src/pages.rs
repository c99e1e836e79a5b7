//! The manual pages and shell completions, from the same description as `--help`.

use clap::{CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use std::io;

/// What there is to print.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Page {
    /// Manual page
    Man,
    /// Completions for Bash
    Bash,
    /// Completions for Zsh
    Zsh,
    /// Completions for fish
    Fish,
}

/// Writes a page of the program whose command line is `C`; of manual pages that of the program, or of one of its
/// subcommands.
///
/// # Errors
/// If there is no such subcommand, or if writing fails.
pub fn write<C: CommandFactory>(page: Page, subcommand: Option<&str>, out: &mut dyn io::Write) -> io::Result<()> {
    let mut command = C::command();
    let name = command.get_name().to_owned();
    let shell = match page {
        Page::Man => {
            command.build();
            let Some(wanted) = subcommand else { return Man::new(command).render(out) };
            let found = command.find_subcommand(wanted).cloned();
            let found = found.ok_or_else(|| io::Error::other(format!("there is no subcommand {wanted}")))?;
            return Man::new(found).title(format!("{name}-{wanted}")).render(out);
        }
        Page::Bash => Shell::Bash,
        Page::Zsh => Shell::Zsh,
        Page::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut command, name, &mut text);
    out.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn page(page: Page, subcommand: Option<&str>) -> String {
        let mut text = Vec::new();
        write::<Cli>(page, subcommand, &mut text).expect("a page");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn pages_name_options_and_subcommands() {
        assert!(page(Page::Man, None).contains("kvick\\-load\\-search(1)"));
        assert!(page(Page::Man, Some("run")).contains("value\\-size"));
        for shell in [Page::Bash, Page::Zsh, Page::Fish] {
            assert!(page(shell, None).contains("value-size"), "{shell:?}");
        }
        assert!(write::<Cli>(Page::Man, Some("nosuch"), &mut Vec::new()).is_err());
    }
}
