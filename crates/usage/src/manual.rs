//! Manual pages: roff with the macros of man(7).

use super::Usage;

impl Usage {
    /// The manual page, for section 1.
    pub(super) fn manual(&self, version: &str) -> String {
        let mut page = format!(".TH {} 1 \"\" \"Kvick {version}\" \"Kvick\"\n", self.program.to_uppercase());
        page += &format!(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n", escaped(self.program), escaped(self.summary));
        for (number, form) in self.synopses.iter().enumerate() {
            page += if number == 0 { "" } else { ".br\n" };
            page += &format!(".B {}\n{}\n", escaped(self.program), escaped(form));
        }
        page += ".SH DESCRIPTION\n";
        self.description.iter().for_each(|paragraph| page += &format!(".PP\n{}\n", escaped(paragraph)));
        page += ".SH OPTIONS\n";
        for option in self.options {
            page += &format!(".TP\n.B {}\n{}\n", escaped(&option.form()), escaped(option.text));
        }
        if !self.examples.is_empty() {
            page += ".SH EXAMPLES\n.nf\n";
            self.examples.iter().for_each(|example| page += &format!("{}\n", escaped(example)));
            page += ".fi\n";
        }
        if !self.see_also.is_empty() {
            let others: Vec<String> = self.see_also.iter().map(|other| format!("{}(1)", escaped(other))).collect();
            page += &format!(".SH SEE ALSO\n{}\n", others.join(", "));
        }
        page
    }
}

/// Text in which no character has a meaning for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // At the start of a line these would be a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::EXAMPLE;

    #[test]
    fn pages_have_all_sections() {
        let page = EXAMPLE.manual("1.2");
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert_eq!(sections, ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"]);
        assert!(page.contains("\n.TP\n.B \\-v, \\-\\-version\nPrints the version.\n"), "{page}");
        assert!(page.contains("back\\eslash"));
    }

    #[test]
    fn text_is_never_a_request() {
        assert_eq!(escaped(".TH -x"), "\\&.TH \\-x");
        assert_eq!(escaped("'quoted"), "\\&'quoted");
    }
}
