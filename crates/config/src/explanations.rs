//! What `kvick.conf` says about each directive.

/// The file as shipped.
const CONF: &str = include_str!("../kvick.conf");

/// A directive as the file shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The heading that it is under, in upper case.
    pub section: &'static str,
    /// The line: the name, and the default or an example.
    pub line: &'static str,
    /// The comment above it, without line ends.
    pub text: String,
}

impl Explanation {
    /// The name of the directive.
    pub fn name(&self) -> &'static str {
        self.line.split(' ').next().unwrap_or_default()
    }
}

/// All directives of the file, in its order. Lines that follow each other share the comment above them.
pub fn all() -> Vec<Explanation> {
    let (mut found, mut section, mut text, mut is_explained) = (Vec::new(), "", String::new(), false);
    for line in CONF.lines() {
        let example = line.strip_prefix("# Example: ");
        let default = line.strip_prefix('#').filter(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()));
        if let Some(shown) = example.or(default) {
            found.push(Explanation { section, line: shown, text: text.trim().to_owned() });
            is_explained = true;
            continue;
        }
        if line.starts_with("##") {
            section = line.trim_matches(['#', ' ']);
        }
        if is_explained || line.is_empty() || line.starts_with("##") {
            text.clear();
            is_explained = false;
        }
        if !line.starts_with("##") {
            text.push_str(line.trim_start_matches('#').trim());
            text.push(' ');
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_have_their_section_line_and_text() {
        let all = all();
        let port = all.iter().find(|directive| directive.name() == "port").expect("port");
        assert_eq!((port.section, port.line), ("NETWORK", "port 6379"));
        assert_eq!(port.text, "TCP port; 0 disables the plain TCP port.");
        assert!(all.iter().all(|directive| !directive.section.is_empty() && !directive.text.is_empty()));
    }
}
