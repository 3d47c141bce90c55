//! Every test that asks an oracle says so by its mark, and by that alone: plain `cargo test` then passes for anyone and
//! shows what it left out, and `ci/test`, which runs the marked tests, leaves nothing out.
//!
//! A test asks an oracle if its body, or a function that it calls by name in its file or in the modules that this file
//! includes, mounts a volume, runs a tool of another package than the system's core, or takes a device. What lies deeper
//! `ci/test` finds: it runs what has no mark without root, and where no oracle is found.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How a test is marked that needs root, the kernel's XFS, xfsprogs or another tool that `ci/test` installs.
const MARK: &str = r#"#[ignore = "needs root and xfsprogs"]"#;
/// How one is marked that `ci/campaigns` alone runs.
const LONG: &str = r#"#[ignore = "takes long"]"#;

/// What asks an oracle, where it is the whole of a string.
const TOOLS: [&str; 29] = [
    "/dev/zram",
    "/dev/zram{}",
    "blkid",
    "dmesg",
    "fio",
    "getfacl",
    "getfattr",
    "losetup",
    "mke2fs",
    "mkfs.ext4",
    "mkfs.xfs",
    "modprobe",
    "mount",
    "partx",
    "qemu-system-x86_64",
    "setfacl",
    "setfattr",
    "setpriv",
    "sgdisk",
    "umount",
    "unshare",
    "valgrind",
    "xfs_admin",
    "xfs_db",
    "xfs_freeze",
    "xfs_growfs",
    "xfs_io",
    "xfs_logprint",
    "xfs_repair",
];
/// What asks an oracle in the code itself.
const CALLS: [&str; 5] = ["Mounted::", "Release::", "fs::chown(", "fs::lchown(", "oracles::mount"];

/// Methods of iterators, which are taken for no others of their names.
const ITERATORS: [&str; 5] = ["all", "any", "find", "for_each", "map"];

/// A function, and what is looked at of it.
#[derive(Debug)]
struct Function {
    name: String,
    /// The type whose method it is.
    of: Option<String>,
    path: PathBuf,
    /// The number of its line, from 1 on.
    line: usize,
    attributes: Vec<String>,
    asks: Option<String>,
    calls: BTreeSet<Call>,
}

impl Function {
    fn is_test(&self) -> bool {
        self.attributes.iter().any(|attribute| attribute == "#[test]")
    }

    fn is_marked(&self) -> bool {
        self.attributes.iter().any(|attribute| attribute == MARK)
    }

    /// Whether its file is a module of this name.
    fn is_in(&self, module: &str) -> bool {
        let file = self.path.with_extension("");
        file.ends_with(module) || file.ends_with(Path::new(module).join("mod"))
    }

    /// What a function calls, among `all` that it may know.
    fn is_called_by(&self, call: &Call, caller: &Self, all: &[Self]) -> bool {
        let is_near = |name: &str| all.iter().any(|own| own.path == caller.path && own.is_free(name));
        match call {
            // A function of the same file hides others of its name.
            Call::Free(name) => self.is_free(name) && (self.path == caller.path || !is_near(name)),
            Call::In(module, name) => self.is_free(name) && self.is_in(module),
            Call::Of(of, name) if of == "Self" => self.name == *name && self.of == caller.of,
            Call::Of(of, name) => self.name == *name && self.of.as_ref() == Some(of),
            Call::Method(name) => self.of.is_some() && self.name == *name,
        }
    }

    fn is_free(&self, name: &str) -> bool {
        self.of.is_none() && !self.is_test() && self.name == name
    }
}

/// A name with parentheses behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// `name()`.
    Free(String),
    /// `module::name()`.
    In(String, String),
    /// `Type::name()`.
    Of(String, String),
    /// `something.name()`.
    Method(String),
}

/// A source, with the same places in its text and in its code.
struct Source {
    path: PathBuf,
    text: String,
    /// With blanks in place of comments and of what is in quotes.
    code: String,
    /// What is in quotes, by where it begins.
    strings: BTreeMap<usize, String>,
}

impl Source {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path);
        Self::of(path, text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn of(path: &Path, text: String) -> Self {
        let (mut code, mut strings) = (String::with_capacity(text.len()), BTreeMap::new());
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let len = quoted(rest, code.chars().next_back());
            let (token, behind) = rest.split_at(len.unwrap_or(first.len_utf8()));
            if len.is_some() {
                if let Some(string) = token.strip_prefix('"').and_then(|token| token.strip_suffix('"')) {
                    strings.insert(code.len(), string.to_owned());
                }
                code.extend(token.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
            } else {
                code.push_str(token);
            }
            rest = behind;
        }
        Self { path: path.to_owned(), text, code, strings }
    }

    /// All functions in it, those within others too.
    fn functions(&self) -> Vec<Function> {
        let types = self.types();
        let function = |(at, name): (usize, String)| {
            let body = self.body(at)?;
            let of = types.iter().rfind(|(range, _)| range.contains(&at)).map(|(_, name)| name.clone());
            Some(Function {
                name,
                of,
                path: self.path.clone(),
                line: self.code[..at].matches('\n').count() + 1,
                attributes: self.attributes(at),
                // A function that runs whatever program it is given: who calls it names an oracle, or does not.
                asks: self.asks(body.clone()).filter(|_| !self.code[at..body.start].contains("program: ")),
                calls: calls(&self.code[body]),
            })
        };
        self.named("fn ").into_iter().filter_map(function).collect()
    }

    /// Where a keyword stands, and the name behind it.
    fn named(&self, keyword: &str) -> Vec<(usize, String)> {
        let starts = self.code.match_indices(keyword).filter(|(at, _)| !self.code[..*at].ends_with(is_part));
        let name = |at: usize| self.code[at + keyword.len()..].chars().take_while(|c| is_part(*c)).collect();
        starts.map(|(at, _)| (at, name(at))).filter(|(_, name): &(_, String)| !name.is_empty()).collect()
    }

    /// The bodies of implementations, with the names of their types.
    fn types(&self) -> Vec<(Range<usize>, String)> {
        let is_item = |at: usize| self.code[..at].trim_end_matches(' ').ends_with('\n') || at == 0;
        let items = self.code.match_indices("impl").map(|(at, _)| at).filter(|at| is_item(*at));
        let found = items.filter_map(|at| {
            let body = self.body(at)?;
            let head = self.code[at + "impl".len()..body.start].split(" where ").next()?;
            let head = if head.starts_with('<') { behind_generics(head) } else { head };
            let path = head.rsplit(" for ").next()?.trim().trim_start_matches('&').split('<').next()?;
            Some((body, path.rsplit("::").next()?.trim().to_owned()))
        });
        found.collect()
    }

    /// What is between the braces of the item at a place, unless it has none.
    fn body(&self, at: usize) -> Option<Range<usize>> {
        let (mut depth, mut brackets, mut open) = (0, 0, None);
        for (nth, byte) in self.code.bytes().enumerate().skip(at) {
            match byte {
                // A pattern among the arguments has braces too, and an array's length a semicolon before it.
                b'[' | b'(' if open.is_none() => brackets += 1,
                b']' | b')' if open.is_none() => brackets -= 1,
                b';' if open.is_none() && brackets == 0 => return None,
                b'{' if open.is_some() || brackets == 0 => {
                    depth += 1;
                    open.get_or_insert(nth);
                }
                b'}' if open.is_some() => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(open?..nth);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The attributes above the line of a place, comments between them or not.
    fn attributes(&self, at: usize) -> Vec<String> {
        let above = self.text[..self.code[..at].rfind('\n').map_or(0, |at| at + 1)].lines().rev();
        let above = above.map(str::trim).take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.filter(|line| line.starts_with("#[")).map(str::to_owned).collect()
    }

    /// What a part of it asks an oracle by.
    fn asks(&self, part: Range<usize>) -> Option<String> {
        let call = CALLS.iter().find(|call| self.code[part.clone()].contains(**call));
        let is_tool = |string: &&String| TOOLS.contains(&string.as_str());
        let string = || self.strings.range(part.clone()).map(|(_, string)| string).find(is_tool);
        call.map(|call| (*call).to_owned()).or_else(|| string().cloned())
    }

    /// The files of the modules that it declares.
    fn modules(&self, is_root: bool) -> Vec<PathBuf> {
        let folder = self.path.parent().expect("a folder");
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let folder = if is_root || stem == "mod" { folder.to_owned() } else { folder.join(stem) };
        let is_file =
            |(at, name): &(usize, String)| self.code[at + "mod ".len() + name.len()..].starts_with(';');
        let names = self.named("mod ").into_iter().filter(is_file);
        let files =
            names.flat_map(|(_, name)| [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")]);
        files.filter(|path| path.is_file()).collect()
    }
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// What comes behind the generics with which `text` begins.
fn behind_generics(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    });
    end.map_or("", |end| &text[end + 1..])
}

/// The length of the comment, string or character with which `text` begins, behind a character.
fn quoted(text: &str, before: Option<char>) -> Option<usize> {
    let until =
        |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(until(2, "*/"));
    }
    let raw = text.strip_prefix('r').filter(|_| !before.is_some_and(|c| is_part(c) && c != 'b'));
    if let Some(behind) = raw {
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        if behind[hashes..].starts_with('"') {
            return Some(until(hashes + 2, &format!("\"{}", "#".repeat(hashes))));
        }
    }
    let quote = text.chars().next().filter(|c| "\"'".contains(*c))?;
    // A lifetime is no character.
    let mut chars = text.chars().skip(1);
    let first = chars.next()?;
    if quote == '\'' && first != '\\' && chars.next()? != '\'' {
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

/// What a piece of code calls, or gives to another function by its name.
fn calls(code: &str) -> BTreeSet<Call> {
    let mut found = BTreeSet::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(|c: char| c.is_alphabetic() || c == '_').map(|len| at + len) {
        let end = code[start..].find(|c| !is_part(c)).map_or(code.len(), |len| start + len);
        let (name, before, behind) = (code[start..end].to_owned(), &code[..start], &code[end..]);
        at = end;
        let is_argument = before.trim_end().ends_with(['(', ','])
            && behind.starts_with([')', ','])
            && !code.contains(&format!("let {name} ="));
        let is_iterators = before.trim_end().ends_with('.') && ITERATORS.contains(&name.as_str());
        if is_iterators || !(behind.starts_with('(') || behind.starts_with("::<") || is_argument) {
            continue;
        }
        let of = before.strip_suffix("::").map(|path| path.rsplit(|c| !is_part(c)).next().unwrap_or(""));
        found.insert(match of {
            Some(of) if of.starts_with(char::is_uppercase) => Call::Of(of.to_owned(), name),
            Some(of) if !["self", "super", "crate"].contains(&of) => Call::In(of.to_owned(), name),
            None if before.trim_end().ends_with('.') => Call::Method(name),
            _ => Call::Free(name),
        });
    }
    found
}

/// Those of some functions that ask an oracle, by their numbers, and what they ask.
fn asking(functions: &[Function]) -> BTreeMap<usize, String> {
    let own = functions.iter().enumerate().filter_map(|(nth, function)| {
        let what = function.asks.as_ref()?;
        Some((nth, format!("`{what}`")))
    });
    let mut asking: BTreeMap<usize, String> = own.collect();
    loop {
        let through = |nth: usize| {
            let caller = &functions[nth];
            let leads = |to: usize| {
                let to = &functions[to];
                caller.calls.iter().any(|call| to.is_called_by(call, caller, functions))
            };
            let (to, what) = asking.iter().find(|(to, _)| leads(**to))?;
            Some((nth, format!("`{}`, {what}", functions[*to].name)))
        };
        let more: Vec<_> =
            (0..functions.len()).filter(|nth| !asking.contains_key(nth)).filter_map(through).collect();
        if more.is_empty() {
            return asking;
        }
        asking.extend(more);
    }
}

/// The functions of a file, and of the modules that it includes.
fn functions_from(root: &Path) -> Vec<Function> {
    let (mut found, mut todo) = (Vec::new(), vec![(root.to_owned(), true)]);
    while let Some((path, is_root)) = todo.pop() {
        let source = Source::read(&path);
        found.extend(source.functions());
        todo.extend(source.modules(is_root).into_iter().map(|path| (path, false)));
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

/// All sources of the workspace, and where they are.
fn workspace() -> (PathBuf, Vec<PathBuf>) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the crates");
    let mut paths = Vec::new();
    sources(&crates, &mut paths);
    assert!(paths.len() > 500, "{} sources", paths.len());
    (crates, paths)
}

#[test]
fn tests_that_ask_an_oracle_are_marked() {
    let (crates, paths) = workspace();
    let (mut unmarked, mut marked) = (BTreeSet::new(), 0);
    for path in paths {
        let in_tests = path.parent().is_some_and(|folder| folder.ends_with("tests"));
        let functions = if in_tests { functions_from(&path) } else { Source::read(&path).functions() };
        for (nth, what) in asking(&functions) {
            let test = &functions[nth];
            if test.is_test() && test.is_marked() {
                marked += 1;
            } else if test.is_test() {
                let place = test.path.strip_prefix(&crates).expect("below it").display();
                unmarked.insert(format!("crates/{place}:{}: {} asks {what}", test.line, test.name));
            }
        }
    }
    let list = unmarked.into_iter().collect::<Vec<_>>().join("\n");
    assert!(list.is_empty(), "put {MARK} below the `#[test]` of:\n{list}");
    assert!(marked > 300, "only {marked} tests ask an oracle");
}

/// Words behind a flag in a script of `ci`.
fn words_behind(flag: &str, script: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci").join(script);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let behind = text.lines().find_map(|line| Some(line.split_once(flag)?.1));
    let words = behind.unwrap_or_else(|| panic!("no {flag} in {script}")).split(' ');
    words.filter(|word| !word.starts_with('-')).map(|word| word.trim_end_matches('"').to_owned()).collect()
}

#[test]
fn no_test_is_left_out_for_another_reason() {
    let (skipped, campaign) = (words_behind("--skip ", "test"), words_behind("-- --ignored ", "campaigns"));
    assert_eq!(skipped, campaign, "what ci/test leaves out, and what the campaigns run");
    for path in workspace().1 {
        let source = Source::read(&path);
        for test in source.functions().iter().filter(|test| test.attributes.iter().any(|line| line == LONG)) {
            assert!(skipped.iter().any(|word| test.name.contains(word)), "ci/campaigns runs {}", test.name);
        }
        for (at, _) in source.code.match_indices("ignore") {
            let line = source.text[..at].rfind('\n').map_or(0, |at| at + 1);
            let line = source.text[line..].lines().next().unwrap_or("").trim();
            assert!(!line.starts_with("#[") || [MARK, LONG].contains(&line), "{}: {line}", path.display());
        }
    }
}

#[test]
fn what_asks_is_found_through_what_it_calls() {
    let text = r##"
        impl<T: Into<u8>> Image<T> {
            fn new() -> Self { made("mkfs.xfs"); Self }
            fn blank(lengths: [u8; 2]) -> Self { let _ = "see mkfs.xfs"; Self }
            fn judged(&self) { run(Command::new("xfs_repair")) }
        }
        fn filled<T>() -> Image { Image::new() }
        fn shown(How { first, .. }: How) { run("xfs_db") }
        /// mount
        fn each(todo: impl Fn()) { todo() }
        fn hidden() {}
        // "mount"
        #[test]
        fn direct() { let at = Mounted::new(); }
        #[test]
        fn through_two() { filled::<u8>(); }
        #[test]
        fn through_a_method() { Image::blank([0; 2]).judged(); }
        #[test]
        fn by_name() { each(filled); }
        #[test]
        fn through_a_pattern() { shown(How { first: 1 }); }
        #[test]
        fn in_a_module() { common::hidden(); }
        #[test]
        fn plain() { Image::blank([1; 2]); Other::new(); hidden(); let brace = '{'; let made = 1; each(made) }
        #[test]
        #[ignore = "needs root and xfsprogs"]
        // Said between them.
        fn marked() { filled() }
    "##;
    let mut functions = Source::of(Path::new("tests/some.rs"), text.to_owned()).functions();
    let common = "fn hidden() { fio(\"fio\") } fn made() { mkfs(\"mkfs.xfs\") }";
    functions.extend(Source::of(Path::new("tests/common/mod.rs"), common.to_owned()).functions());
    let asking = asking(&functions);
    let tests = functions.iter().enumerate().filter(|(_, function)| function.is_test());
    let found: Vec<_> =
        tests.map(|(nth, test)| (test.name.as_str(), asking.contains_key(&nth), test.is_marked())).collect();
    let expected = [
        ("direct", true, false),
        ("through_two", true, false),
        ("through_a_method", true, false),
        ("by_name", true, false),
        ("through_a_pattern", true, false),
        ("in_a_module", true, false),
        ("plain", false, false),
        ("marked", true, true),
    ];
    assert_eq!(found, expected);
}
