//! Completions: options, directives and file names.

use super::{Shell, Usage};

impl Usage {
    pub(super) fn completion(&self, shell: Shell, directives: &[&str]) -> String {
        match shell {
            Shell::Bash => self.for_bash(directives),
            Shell::Zsh => self.for_zsh(directives),
            Shell::Fish => self.for_fish(directives),
        }
    }

    fn for_bash(&self, directives: &[&str]) -> String {
        let program = self.program;
        let function = format!("_{}", program.replace('-', "_"));
        let options = self.options.iter().flat_map(|option| option.names.iter().map(|name| (*name).to_owned()));
        let words: Vec<String> = options.chain(directives.iter().map(|name| format!("--{name}"))).collect();
        let words = words.join(" ");
        format!(
            "{function}() {{\n    local word=${{COMP_WORDS[COMP_CWORD]}}\n    if [[ $word == -* ]]; then\n        \
             mapfile -t COMPREPLY < <(compgen -W '{words}' -- \"$word\")\n    else\n        mapfile -t COMPREPLY < \
             <(compgen -f -- \"$word\")\n    fi\n}}\ncomplete -o filenames -F {function} {program}\n"
        )
    }

    fn for_zsh(&self, directives: &[&str]) -> String {
        let mut text = format!("#compdef {}\n_arguments", self.program);
        for option in self.options {
            let value = if option.value.is_empty() { String::new() } else { format!(":{}:", option.value) };
            for name in option.names {
                // Brackets and colons separate parts.
                let described = option.text.replace('\'', "'\\''").replace(['[', ']', ':'], "");
                text += &format!(" \\\n    '{name}[{described}]{value}'");
            }
        }
        directives.iter().for_each(|name| text += &format!(" \\\n    '*--{name}:value:_files'"));
        text + " \\\n    '*:file:_files'\n"
    }

    fn for_fish(&self, directives: &[&str]) -> String {
        let mut text = String::new();
        for option in self.options {
            text += &format!("complete -c {}", self.program);
            for name in option.names {
                text += &match name.strip_prefix("--") {
                    Some(long) => format!(" -l {long}"),
                    None => format!(" -s {}", name.trim_start_matches('-')),
                };
            }
            text += if option.value.is_empty() { "" } else { " -x" };
            text += &format!(" -d '{}'\n", option.text.replace('\\', "\\\\").replace('\'', "\\'"));
        }
        directives.iter().for_each(|name| text += &format!("complete -c {} -r -l {name}\n", self.program));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::EXAMPLE;
    use std::process::Command;

    const ALL: [&str; 5] = ["-v", "--version", "--test", "--port", "--maxmemory"];

    #[test]
    fn bash_completes_options_and_directives() {
        let script = EXAMPLE.completion(Shell::Bash, &["port", "maxmemory"]);
        let ask = |word: &str| {
            let line =
                format!("{script}COMP_WORDS=(example '{word}') COMP_CWORD=1; _example; echo \"${{COMPREPLY[@]}}\"");
            let output = Command::new("bash").args(["-c", &line]).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let Some(all) = ask("-") else { return println!("Not run: bash is missing") };
        assert_eq!(all.split(' ').collect::<Vec<_>>(), ALL);
        assert_eq!(ask("--p").as_deref(), Some("--port"));
    }

    #[test]
    fn other_shells_get_the_same_options() {
        let zsh = EXAMPLE.completion(Shell::Zsh, &["port", "maxmemory"]);
        assert!(zsh.starts_with("#compdef example\n"));
        assert!(
            ALL.iter().all(|name| zsh.contains(&format!("{name}[")) || zsh.contains(&format!("*{name}:"))),
            "{zsh}"
        );
        assert!(zsh.contains("what'\\''s wrong"));
        let fish = EXAMPLE.completion(Shell::Fish, &["port", "maxmemory"]);
        assert!(fish.contains("-s v -l version -d 'Prints the version.'"), "{fish}");
        assert!(fish.contains("-l test -x -d 'Tests memory; what\\'s wrong is reported.'"), "{fish}");
        assert_eq!(fish.lines().count(), 4);
    }
}
