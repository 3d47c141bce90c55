//! The order of crates and modules, as `DESIGN.md` has it: no import goes up.
//!
//! The crates are the rows of a table, highest first, each with what it may know; the modules of `crates/xfs` are a list,
//! lowest first. Both are read from there, so that what is written and what is so cannot differ. An import is any path
//! that begins with `crate::`, `super::` or a crate's name, in code that is no test. So that calls are seen too, a module
//! gives methods to its own types alone: what it does with another's are functions.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the list of modules begins, and where it ends.
const MODULES: &str = "### The modules of `crates/xfs`";
const NEXT_CHAPTER: &str = "\n## ";

/// A place in a source that names a module, or a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import {
    line: usize,
    of: String,
}

/// What is written in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The modules in the list, lowest first.
fn modules(design: &str) -> Vec<String> {
    let list = &design[design.find(MODULES).expect("the list of modules is there") + MODULES.len()..];
    let list = &list[..list.find(NEXT_CHAPTER).unwrap_or(list.len())];
    let is_entry = |line: &&str| line.split_once(". ").is_some_and(|(nth, _)| nth.parse::<u32>().is_ok());
    let names = |line| quoted(str::split_once(line, " — ").map_or(line, |(names, _)| names));
    list.lines().filter(is_entry).flat_map(names).map(str::to_owned).collect()
}

/// The crates in the table, highest first, each with what it may know.
fn crates(design: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `crates/")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?.to_owned();
        Some((name, cells.last()?.trim_end_matches(" |").to_owned()))
    };
    design.lines().filter_map(row).collect()
}

/// A source without comments, literals and tests. Lines stay lines.
fn code(source: &str) -> String {
    without_tests(&without_words(source))
}

/// Blanks comments, strings and characters.
fn without_words(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < text.len() {
        let end = word_end(&text, at);
        if end == at {
            out.push(text[at]);
            at += 1;
            continue;
        }
        out.extend(text[at..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
        at = end;
    }
    out
}

/// The end of the comment or literal that begins at a place; the place itself if none does.
fn word_end(text: &[char], at: usize) -> usize {
    let starts = |at: usize, with: &str| with.chars().enumerate().all(|(n, c)| text.get(at + n) == Some(&c));
    let find = |from: usize, what: &str| (from..text.len()).find(|&at| starts(at, what));
    let before = at.checked_sub(1).map_or(' ', |before| text[before]);
    if starts(at, "//") {
        return find(at, "\n").unwrap_or(text.len());
    }
    if starts(at, "/*") {
        let (mut depth, mut end) = (0, at);
        while end < text.len() {
            if starts(end, "/*") {
                (depth, end) = (depth + 1, end + 2);
            } else if starts(end, "*/") {
                (depth, end) = (depth - 1, end + 2);
                if depth == 0 {
                    break;
                }
            } else {
                end += 1;
            }
        }
        return end;
    }
    if text[at] == 'r' && !(before.is_alphanumeric() || before == '_') || starts(at, "br") {
        let quotes = at + if text[at] == 'b' { 2 } else { 1 };
        let marks = text[quotes..].iter().take_while(|&&c| c == '#').count();
        if text.get(quotes + marks) == Some(&'"') {
            let close = format!("\"{}", "#".repeat(marks));
            return find(quotes + marks + 1, &close).map_or(text.len(), |end| end + close.len());
        }
    }
    if text[at] == '"' {
        let mut end = at + 1;
        while end < text.len() && text[end] != '"' {
            end += if text[end] == '\\' { 2 } else { 1 };
        }
        return (end + 1).min(text.len());
    }
    if text[at] == '\'' && text.get(at + 1) == Some(&'\\') {
        return find(at + 3, "'").map_or(text.len(), |end| end + 1);
    }
    if text[at] == '\'' && text.get(at + 2) == Some(&'\'') {
        return at + 3;
    }
    at
}

/// Whether a condition (the inside of `cfg(…)`) holds in tests alone.
fn is_of_tests(condition: &str) -> bool {
    condition == "test" || condition.starts_with("all(test,") || condition.starts_with("all(test )")
}

/// The attributes that leave an item to tests: where each begins, and where what follows it begins.
fn test_attributes(code: &str) -> Vec<(usize, usize)> {
    let found = code.match_indices("#[cfg(").filter_map(|(start, open)| {
        let inside = start + open.len();
        let end = inside + code[inside..].find(")]")?;
        is_of_tests(&code[inside..end]).then_some((start, end + 2))
    });
    found.collect()
}

/// Blanks the items that are built for tests alone.
fn without_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for (start, behind) in test_attributes(code) {
        let (mut depth, mut end) = (0_i32, behind);
        for (at, c) in code[behind..].char_indices() {
            end = behind + at + c.len_utf8();
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => {
                    depth -= 1;
                    if c == '}' && depth <= 0 {
                        break;
                    }
                }
                ';' | ',' if depth == 0 => break,
                _ => {}
            }
        }
        bytes[start..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    String::from_utf8(bytes).expect("whole characters were blanked")
}

/// Modules in files of their own that are built for tests alone.
fn test_modules(source: &str) -> Vec<String> {
    let code = without_words(source);
    let name = |(_, behind): (usize, usize)| {
        let item = code[behind..].split(['{', ';']).next()?;
        let (visible, name) = item.split_once("mod ")?;
        let declares = code[behind + item.len()..].starts_with(';') && !visible.contains("fn ");
        declares.then(|| name.trim().to_owned())
    };
    test_attributes(&code).into_iter().filter_map(name).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The name that a text begins with.
fn name_at(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c| !is_of_name(c)).unwrap_or(text.len())]
}

/// The first names of a path, or of each path in braces.
fn first_names(path: &str) -> Vec<(usize, &str)> {
    if !path.starts_with('{') {
        return vec![(0, name_at(path))];
    }
    let (mut depth, mut begins, mut names) = (0, true, Vec::new());
    for (at, c) in path.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => begins = true,
            c if begins && is_of_name(c) => {
                names.push((at, name_at(&path[at..])));
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// How many modules within its file a place lies in.
fn inline_depth(code: &str, place: usize) -> usize {
    let mut open = Vec::new();
    let mut begin = 0;
    for (at, c) in code[..place].char_indices() {
        match c {
            '{' => open.push(code[begin..at].split_whitespace().rev().nth(1) == Some("mod")),
            '}' => drop(open.pop()),
            ';' => {}
            _ => continue,
        }
        begin = at + 1;
    }
    open.into_iter().filter(|is_module| *is_module).count()
}

/// The modules right below the crate's root that a source names. It is that of a module so deep below the root.
fn imports(code: &str, depth: usize) -> Vec<Import> {
    let mut found = Vec::new();
    let mut add = |place: usize, path: &str| {
        for (at, name) in first_names(path) {
            let line = code[..place + at].matches('\n').count() + 1;
            found.push(Import { line, of: name.to_owned() });
        }
    };
    for word in ["crate::", "super::"] {
        for (start, _) in code.match_indices(word) {
            let before = code[..start].chars().next_back();
            if before.is_some_and(|c| is_of_name(c) || (c == ':' && word == "super::")) {
                continue;
            }
            let mut behind = start + word.len();
            if word == "super::" {
                let mut up = 1;
                while code[behind..].starts_with(word) {
                    (up, behind) = (up + 1, behind + word.len());
                }
                if up != depth + inline_depth(code, start) {
                    continue;
                }
            }
            add(behind, &code[behind..]);
        }
    }
    found.sort_by_key(|import| import.line);
    found
}

/// The other crates that a source names.
fn crates_named(code: &str, others: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    for other in others {
        let path = format!("{}::", other.replace('-', "_"));
        for (start, _) in code.match_indices(&path) {
            // Behind a `::` it is a module of that name, or the crate all the same.
            let before = code[..start].trim_end_matches("::");
            let within = before.len() < start && before.chars().next_back().is_some_and(is_of_name);
            if within || code[..start].chars().next_back().is_some_and(is_of_name) {
                continue;
            }
            found.push(Import { line: code[..start].matches('\n').count() + 1, of: other.clone() });
        }
    }
    found
}

/// Says which imports of a module do not go down.
fn judge(order: &[String], module: &str, file: &str, imports: &[Import]) -> Vec<String> {
    let rank = |name: &str| order.iter().position(|one| one == name);
    let Some(own) = rank(module) else {
        return vec![format!("{file}: module {module} is not in the list of DESIGN.md")];
    };
    let up = imports.iter().filter(|import| rank(&import.of).is_some_and(|of| of > own));
    up.map(|Import { line, of }| format!("{file}:{line}: {module} imports {of}, which stands above it"))
        .collect()
}

/// The sources of a crate that are no tests, each with the names of the modules that it lies in.
fn sources(root: &Path) -> Vec<(PathBuf, Vec<String>)> {
    let (mut folders, mut files) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(end) if end == "rs" => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    let modules_of = |path: &Path| {
        let within = path.strip_prefix(root).expect("below the root").with_extension("");
        let names = within.iter().map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| !matches!(name.as_str(), "mod" | "lib" | "main")).collect::<Vec<String>>()
    };
    let mut of_tests = Vec::new();
    for path in &files {
        let source = fs::read_to_string(path).expect("a source");
        let own = modules_of(path);
        of_tests.extend(test_modules(&source).into_iter().map(|name| [own.clone(), vec![name]].concat()));
    }
    let with_modules = files.into_iter().map(|path| (modules_of(&path), path));
    let is_no_test = |modules: &Vec<String>| !of_tests.iter().any(|test| modules.starts_with(test));
    with_modules.filter(|(modules, _)| is_no_test(modules)).map(|(modules, path)| (path, modules)).collect()
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn design() -> String {
    fs::read_to_string(workspace().join("DESIGN.md")).expect("DESIGN.md")
}

fn shown(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap_or(path).display().to_string()
}

#[test]
fn no_module_of_the_engine_imports_one_above_it() {
    let (order, root) = (modules(&design()), workspace().join("crates/xfs/src"));
    let (mut wrong, mut there) = (Vec::new(), BTreeMap::new());
    for (path, modules) in sources(&root) {
        // The root names all of them.
        let Some(module) = modules.first() else { continue };
        there.insert(module.clone(), ());
        let code = code(&fs::read_to_string(&path).expect("a source"));
        wrong.extend(judge(&order, module, &shown(&path), &imports(&code, modules.len())));
    }
    let gone = order.iter().filter(|name| !there.contains_key(*name));
    wrong.extend(gone.map(|name| format!("DESIGN.md: there is no module {name}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The types that a source defines, and those that it gives methods to, each with its line.
fn types(code: &str) -> (Vec<String>, Vec<Import>) {
    let (mut defined, mut given) = (Vec::new(), Vec::new());
    for (nth, line) in code.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            if matches!(pair[0], "struct" | "enum" | "union" | "trait" | "type") {
                defined.push(name_at(pair[1]).to_owned());
            }
        }
        let Some(header) = line.strip_prefix("impl").filter(|_| line.ends_with('{')) else { continue };
        if header.starts_with([' ', '<']) && !words.contains(&"for") {
            let mut depth = 0;
            let of = header.find(|c: char| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0 && is_of_name(c)
            });
            given.extend(of.map(|of| Import { line: nth + 1, of: name_at(&header[of..]).to_owned() }));
        }
    }
    (defined, given)
}

/// A call of such a method is no import, and may go up unseen.
#[test]
fn no_module_gives_methods_to_a_type_of_another() {
    let root = workspace().join("crates/xfs/src");
    let (mut defined, mut given): (BTreeMap<String, Vec<String>>, Vec<_>) = (BTreeMap::new(), Vec::new());
    for (path, modules) in sources(&root) {
        let Some(module) = modules.first() else { continue };
        let (of_file, to) = types(&code(&fs::read_to_string(&path).expect("a source")));
        defined.entry(module.clone()).or_default().extend(of_file);
        given.extend(to.into_iter().map(|to| (module.clone(), shown(&path), to)));
    }
    given.retain(|(module, _, to)| !defined[module].contains(&to.of));
    let wrong: Vec<String> = given
        .iter()
        .map(|(module, file, to)| format!("{file}:{}: {module} gives methods to {}", to.line, to.of))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn methods_for_a_type_of_another_are_found() {
    let source =
        "struct Own<T>(T);\nimpl<T: Into<u8>> Own<T> {\n}\nimpl Other<'_> {\n}\nimpl Fork for Third {\n}\n";
    let (defined, given) = types(source);
    assert_eq!(defined, ["Own"]);
    let import = |line, of: &str| Import { line, of: of.to_owned() };
    assert_eq!(given, [import(2, "Own"), import(4, "Other")]);
}

#[test]
fn no_crate_knows_one_above_it() {
    let (table, mut wrong) = (crates(&design()), Vec::new());
    let names: Vec<String> = table.iter().map(|(name, _)| name.clone()).collect();
    for entry in fs::read_dir(workspace().join("crates")).expect("crates") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !names.contains(&name) {
            wrong.push(format!("crates/{name} is not in the table of DESIGN.md"));
        }
    }
    for (nth, (name, knows)) in table.iter().enumerate() {
        let may = |other: &String| {
            let is_word = |at: usize, c: Option<char>| {
                !c.is_some_and(|c| is_of_name(c) || c == '-') && at < knows.len()
            };
            let named = knows.match_indices(other.as_str()).any(|(at, _)| {
                is_word(at, knows[..at].chars().next_back())
                    && is_word(at, knows[at + other.len()..].chars().next())
            });
            let below = names[nth + 1..].contains(other);
            below && (named || knows == "everything")
        };
        let others: Vec<String> = names.iter().filter(|other| *other != name).cloned().collect();
        let root = workspace().join("crates").join(name);
        let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
        for other in dependencies(&manifest, &others).into_iter().filter(|other| !may(other)) {
            wrong.push(format!("crates/{name}/Cargo.toml: depends on {other}, which it may not know"));
        }
        for (path, modules) in sources(&root.join("src")) {
            let code = code(&fs::read_to_string(&path).expect("a source"));
            // A module of the same name hides a crate.
            let own = |import: &Import| {
                root.join("src").join(import.of.replace('-', "_")).with_extension("rs").exists()
            };
            let up =
                crates_named(&code, &others).into_iter().filter(|import| !may(&import.of) && !own(import));
            wrong.extend(up.map(|Import { line, of }| {
                let (place, module) = (shown(&path), modules.join("::"));
                format!("{place}:{line}: {name} ({module}) imports {of}, which it may not know")
            }));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The crates of the workspace that a manifest depends on, except for tests.
fn dependencies(manifest: &str, others: &[String]) -> Vec<String> {
    let mut of_code = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            of_code = line.trim() == "[dependencies]";
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if of_code && others.iter().any(|other| other == name) {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn an_import_that_goes_up_is_found_wherever_it_is() {
    let design = "\n### The modules of `crates/xfs`\nA list (`x`).\n\n1. `low` · `mid` — words of `none`\n2. `high` — more\n\n## Next\n1. `no`\n";
    let order = modules(design);
    assert_eq!(order, ["low", "mid", "high"]);
    let source = r##"
//! See [`high`](crate::high).
use crate::low::{self, Thing};
use crate::{
    high::{Up, mid},
    low,
};
use super::high::Other;
/* crate::high */
const TEXT: &str = "crate::high \" crate::high";
const RAW: &str = r#"crate::high""#;
const QUOTE: char = '"';
fn f<'a>(x: &'a u8) -> crate::high::T { super::super::high::g(x) }
#[cfg(test)]
use crate::high::OfTests;
#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::high::All;
}
mod inner {
    use super::super::high::Deep;
}
#[cfg(not(test))]
use crate::high::Always;
"##;
    let found = imports(&code(source), 1);
    let wrong = judge(&order, "mid", "mid.rs", &found);
    let lines =
        [5, 8, 13, 21, 24].map(|line| format!("mid.rs:{line}: mid imports high, which stands above it"));
    assert_eq!(wrong, lines, "{found:?}");
    assert!(judge(&order, "high", "high.rs", &found).is_empty());
    assert_eq!(judge(&order, "new", "new.rs", &[]).len(), 1);
    // In `mid/part.rs` a path that goes up twice begins at the root.
    let deep = judge(&order, "mid", "mid/part.rs", &imports("use super::super::high;\nuse super::high;", 2));
    assert_eq!(deep, ["mid/part.rs:1: mid imports high, which stands above it"]);
}

#[test]
fn a_crate_that_knows_one_above_it_is_found() {
    let design = "| crate | what | may know |\n|---|---|---|\n| `crates/top` | all | a-b (for x) |\n| `crates/a-b` | some | nothing |\n";
    let table = crates(design);
    let pair = |name: &str, knows: &str| (name.to_owned(), knows.to_owned());
    assert_eq!(table, [pair("top", "a-b (for x)"), pair("a-b", "nothing")]);
    let others = ["top".to_owned(), "a-b".to_owned()];
    let named = crates_named("use a_b::x;\nfn f() { ::top::g(); stop::h(); x::top::i() }", &others);
    let import = |line, of: &str| Import { line, of: of.to_owned() };
    assert_eq!(named, [import(2, "top"), import(1, "a-b")]);
    let manifest =
        "[dependencies]\ntop.workspace = true\nserde = \"1\"\n\n[dev-dependencies]\na-b.workspace = true\n";
    assert_eq!(dependencies(manifest, &others), ["top"]);
}

#[test]
fn modules_of_tests_are_known() {
    let source = "#[cfg(test)]\nmod tests;\nmod code;\n#[cfg(all(test, not(shuttle)))]\npub(crate) mod models;\n#[cfg(test)]\nfn f() { }\n";
    assert_eq!(test_modules(source), ["tests", "models"]);
}
