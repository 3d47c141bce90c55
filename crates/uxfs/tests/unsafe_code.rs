//! Where `unsafe` may be, in the whole workspace: in three crates, and there with its reason above it.
//!
//! The compiler sees to it where a root says `forbid(unsafe_code)`, and clippy to the reasons; here it is seen that no root
//! forgets to say so, be it a library's, a test's or a fuzz target's, and that nobody needs clippy to notice.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// The crates that may have some.
const ALLOWED: [&str; 3] = ["rangelock", "blockdev", "fileio"];
/// What a root says that has none.
const FORBID: &str = "#![forbid(unsafe_code)]";
/// The folders of a crate in which each file, and each folder with a `main.rs`, is a root.
const FOLDERS: [&str; 6] = ["tests", "examples", "benches", "src/bin", "fuzz_targets", "tools"];

/// A source file as a compiler sees it: its lines, and these without comments and what is in quotes.
struct Source {
    path: PathBuf,
    lines: Vec<String>,
    code: Vec<String>,
}

impl Source {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).expect("a source file");
        Self::of(path, &text)
    }

    fn of(path: PathBuf, text: &str) -> Self {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        // Most have the word nowhere else.
        let is_plain = !text.replace(FORBID, "").contains("unsafe");
        let code = if is_plain { lines(text) } else { lines(&code_of(text)) };
        Self { path, lines: lines(text), code }
    }

    /// The numbers of lines with the word `unsafe`, from 0 on, and where it begins.
    fn unsafes(&self) -> impl Iterator<Item = (usize, usize)> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.code.iter().enumerate().flat_map(move |(nth, line)| {
            let found = line.match_indices("unsafe").filter(move |(at, word)| {
                !line[..*at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
            });
            found.map(move |(at, _)| (nth, at))
        })
    }

    fn forbids(&self) -> bool {
        self.code.iter().any(|line| line.trim() == FORBID)
    }

    /// Whether it is a block, or an implementation, and not the declaration of what is unsafe to call.
    fn needs_reason(&self, (nth, at): (usize, usize)) -> bool {
        let behind = self.code[nth][at + "unsafe".len()..].trim_start();
        behind.is_empty() || behind.starts_with('{') || behind.starts_with("impl")
    }

    /// Whether the comment directly above a line, or above the statement that it ends, gives a reason.
    fn has_reason(&self, nth: usize) -> bool {
        let is_comment = |nth: usize| self.lines[nth].trim_start().starts_with("//");
        let ends = |nth: usize| {
            let code = self.code[nth].trim_end();
            code.is_empty() || code.ends_with([';', '{', '}', ','])
        };
        let mut above = nth;
        while above > 0 && !is_comment(above - 1) && !ends(above - 1) {
            above -= 1;
        }
        let comment = (0..above).rev().take_while(|&nth| is_comment(nth));
        comment.into_iter().any(|nth| self.lines[nth].trim_start().starts_with("// SAFETY: "))
    }

    fn at(&self, nth: usize) -> String {
        format!("{}:{}", self.path.display(), nth + 1)
    }
}

/// A program with blanks in place of comments and of what is in quotes.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = token_len(rest, code.chars().next_back());
        let (token, behind) = rest.split_at(len.unwrap_or(first.len_utf8()));
        match len {
            Some(_) => code.extend(token.chars().map(|c| if c == '\n' { c } else { ' ' })),
            None => code.push_str(token),
        }
        rest = behind;
    }
    code
}

/// The length of the comment, string or character with which `text` begins, behind a character.
fn token_len(text: &str, before: Option<char>) -> Option<usize> {
    let until =
        |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        let (mut depth, mut at) = (1, 2);
        while depth > 0 && at < text.len() {
            let (next, change) = match &text.as_bytes()[at..] {
                [b'/', b'*', ..] => (2, 1),
                [b'*', b'/', ..] => (2, -1),
                _ => (1, 0),
            };
            (at, depth) = (at + next, depth + change);
        }
        return Some(at);
    }
    // A raw string, unless it is the end of a name.
    let raw = text.strip_prefix('r').filter(|_| !before.is_some_and(|c| c.is_alphanumeric() && c != 'b'));
    if let Some(behind) = raw {
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        if behind[hashes..].starts_with('"') {
            return Some(until(hashes + 2, &format!("\"{}", "#".repeat(hashes))));
        }
    }
    let quote = text.chars().next().filter(|c| "\"'".contains(*c))?;
    // A lifetime is no character.
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if quote == '\'' && first != '\\' && chars.next()?.1 != '\'' {
        return None;
    }
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names and folders of all crates.
fn crates() -> Vec<(String, PathBuf)> {
    let mut crates = vec![("fuzz".to_owned(), workspace().join("fuzz"))];
    for entry in fs::read_dir(workspace().join("crates")).expect("the crates") {
        let path = entry.expect("an entry").path();
        if path.join("Cargo.toml").exists() {
            crates.push((path.file_name().expect("a name").to_string_lossy().into_owned(), path));
        }
    }
    assert!(ALLOWED.iter().all(|name| crates.iter().any(|(other, _)| name == other)));
    crates
}

/// All source files below a folder.
fn sources(folder: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(Source::read(path));
        }
    }
    found
}

/// Whether a file is what the compiler begins with.
fn is_root(folder: &Path, path: &Path) -> bool {
    let path = path.strip_prefix(folder).expect("a file of the crate");
    let whole = ["src/lib.rs", "src/main.rs", "build.rs"].iter().any(|root| path == Path::new(root));
    let parent = path.parent().expect("not the root");
    let is_in = |place: Option<&Path>| FOLDERS.iter().any(|folder| place == Some(Path::new(folder)));
    whole || is_in(Some(parent)) || path.ends_with("main.rs") && is_in(parent.parent())
}

#[test]
fn three_crates_have_unsafe_code_and_all_roots_of_others_forbid_it() {
    let (mut wrong, mut roots) = (Vec::new(), 0);
    for (name, folder) in crates() {
        for source in sources(&folder) {
            if is_root(&folder, &source.path) {
                roots += 1;
                if !ALLOWED.contains(&name.as_str()) && !source.forbids() {
                    wrong.push(format!("{} does not say {FORBID}", source.at(0)));
                }
            }
            if !ALLOWED.contains(&name.as_str()) {
                wrong.extend(source.unsafes().map(|(nth, _)| format!("{} has unsafe code", source.at(nth))));
            }
        }
    }
    assert!(roots > 100, "only {roots} roots were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_says_above_it_why_it_is_sound() {
    let (mut wrong, mut reasons) = (Vec::new(), 0);
    for (_, folder) in crates().into_iter().filter(|(name, _)| ALLOWED.contains(&name.as_str())) {
        for source in sources(&folder) {
            for (nth, at) in source.unsafes().filter(|&place| source.needs_reason(place)) {
                reasons += 1;
                if !source.has_reason(nth) {
                    wrong.push(format!("{}:{}: no `// SAFETY: ` above it", source.at(nth), at + 1));
                }
            }
        }
    }
    assert!(reasons > 50, "only {reasons} were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_code_is_code() {
    let source = |text: &str| Source::of(PathBuf::new(), text);
    let none = [
        "// unsafe",
        "/* unsafe /* unsafe */ unsafe */",
        "let a = \"unsafe \\\" unsafe\";",
        "let a = br#\"unsafe \" unsafe\"#;",
        "let a = \"over\nunsafe\n\";",
        "#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]",
        "let (a, b) = ('\"', '\\''); // unsafe",
        "let not_unsafe = unsafe_to_say;",
    ];
    none.iter().for_each(|text| assert_eq!(source(text).unsafes().count(), 0, "{text}"));
    let some = [
        "fn a<'a>(b: &'a str) -> &'a str { unsafe { c('\"') } }",
        "let a = \"//\"; unsafe { b() }",
        "for_r\"\"; unsafe {}",
        "let a = '\\\\'; unsafe {}",
    ];
    some.iter().for_each(|text| assert_eq!(source(text).unsafes().count(), 1, "{text}"));
    let reasoned = |text: &str| {
        let source = source(text);
        source.unsafes().filter(|&place| source.needs_reason(place)).all(|(nth, _)| source.has_reason(nth))
    };
    assert!(reasoned("// SAFETY: it is,\n// and more.\nlet a =\n    unsafe { b() };"));
    assert!(reasoned("a(\n    // SAFETY: it is.\n    unsafe { b() },\n);"));
    assert!(reasoned("unsafe fn a() {}"));
    assert!(!reasoned("// SAFETY: it is.\na();\nunsafe { b() };"));
    assert!(!reasoned("// SAFETY: it is.\n\nunsafe { b() };"));
    assert!(!reasoned("// It is.\nunsafe impl A for B {}"));
}
