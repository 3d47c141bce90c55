//! Words and numbers as a page has them.

/// Escapes text for HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Not allowed in a page.
            control if control.is_control() && !matches!(control, '\n' | '\t') => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A number to three digits.
pub(super) fn figure(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    text + unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a href=\"x\">'&\u{1b}"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{fffd}");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.456, "0.46"),
            (98.4, "98.4"),
            (5800.0, "5800"),
            (12_345.0, "12.3k"),
            (2.5e6, "2.50M"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
