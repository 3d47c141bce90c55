//! Shell patterns on bytes: `*`, `?`, `[a-z]`, `[!x]`, and `\` before a character that is meant literally.
//!
//! Time is at most the length of the pattern times that of the name: only the last `*` is retried.

/// Whether all of `name` matches `pattern`.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to continue if what follows the last `*` doesn't match: after it, with one more byte for
    // it.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, n));
            continue;
        }
        let step = match name.get(n) {
            None if p == pattern.len() => return true,
            None => return false,
            Some(&byte) => one(&pattern[p..], byte),
        };
        match (step, retry) {
            (Some(length), _) => {
                p += length;
                n += 1;
            }
            (None, Some((behind, from))) => {
                p = behind;
                n = from + 1;
                retry = Some((behind, n));
            }
            (None, None) => return false,
        }
    }
}

/// Whether the first element of `pattern` (not a `*`) matches `byte`: its length in the pattern.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => match set(rest, byte) {
            Some((length, hit)) => hit.then_some(1 + length),
            // Without a `]` it is not a set.
            None => (byte == b'[').then_some(1),
        },
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Parses a set after its `[`: its length with the `]`, and whether `byte` is in it.
fn set(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let mut at = usize::from(negated);
    let first = at;
    let mut hit = false;
    loop {
        let (low, length) = member(&pattern[at..])?;
        if low == b']' && length == 1 && at > first {
            return Some((at + 1, hit != negated));
        }
        at += length;
        let mut high = low;
        if let Some([b'-', end, ..]) = pattern.get(at..)
            && *end != b']'
        {
            let (end, length) = member(&pattern[at + 1..])?;
            high = end;
            at += 1 + length;
        }
        hit |= (low..=high).contains(&byte);
    }
}

/// One member of a set, and its length.
fn member(pattern: &[u8]) -> Option<(u8, usize)> {
    match pattern {
        [b'\\', byte, ..] => Some((*byte, 2)),
        [byte, ..] => Some((*byte, 1)),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*.rs", "main.rs", true),
            ("*.rs", ".rs", true),
            ("*.rs", "main.rsx", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "é", false),
            ("??", "é", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[a-]", "-", true),
            ("[\\]]", "]", true),
            ("[", "[", true),
            ("[ab", "[ab", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a\\", "a\\", true),
            ("{a,b}", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_are_no_trouble() {
        let pattern = b"*a".repeat(60);
        let name = b"a".repeat(255);
        assert!(matches(&pattern, &name));
        assert!(!matches(&[&pattern[..], b"b"].concat(), &name));
    }
}
