//! The flags of files that `chattr` sets and `lsattr` shows, by their letters.
//!
//! Invariant: flags that XFS does not have are refused by name, never ignored.

use std::str::FromStr;
use uxfs::{Changes, Metadata};

/// One flag that XFS keeps.
struct Flag {
    letter: u8,
    /// The bit in `fsx_xflags`.
    xflag: u32,
    name: &'static str,
    field: fn(&mut Changes) -> &mut Option<bool>,
    /// Whether only directories have it.
    of_dirs: bool,
}

/// In the order of `lsattr`.
const FLAGS: [Flag; 6] = [
    Flag { letter: b'S', xflag: 0x20, name: "synchronous", field: |to| &mut to.synchronous, of_dirs: false },
    Flag { letter: b'i', xflag: 0x8, name: "immutable", field: |to| &mut to.immutable, of_dirs: false },
    Flag { letter: b'a', xflag: 0x10, name: "append-only", field: |to| &mut to.append_only, of_dirs: false },
    Flag { letter: b'd', xflag: 0x80, name: "no dump", field: |to| &mut to.no_dump, of_dirs: false },
    Flag { letter: b'A', xflag: 0x40, name: "no atime", field: |to| &mut to.no_atime, of_dirs: false },
    Flag {
        letter: b'P',
        xflag: 0x200,
        name: "project inherited",
        field: |to| &mut to.project_inherit,
        of_dirs: true,
    },
];

/// Letters that other file systems know, and what they mean there.
const OTHERS: [(u8, &str); 16] = [
    (b'c', "compressed"),
    (b'C', "no copy on write"),
    (b'D', "synchronous directory"),
    (b'e', "extents"),
    (b'E', "encrypted"),
    (b'F', "names without case"),
    (b'I', "indexed directory"),
    (b'j', "journaled data"),
    (b'm', "not compressed"),
    (b'N', "inline data"),
    (b's', "secure deletion"),
    (b't', "no tail merging"),
    (b'T', "top of a hierarchy"),
    (b'u', "undeletable"),
    (b'V', "verity"),
    (b'x', "direct access to memory"),
];

/// `+i`, `-a`, `=dA`, or several in one: `+i-d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagChange {
    set: u32,
    clear: u32,
}

impl FromStr for FlagChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut change = Self { set: 0, clear: 0 };
        let mut sign = None;
        for letter in text.bytes() {
            if matches!(letter, b'+' | b'-' | b'=') {
                sign = Some(letter);
                if letter == b'=' {
                    change = Self { set: 0, clear: FLAGS.iter().fold(0, |all, flag| all | flag.xflag) };
                }
                continue;
            }
            let xflag = known(letter)?.xflag;
            let (to, from) = match sign {
                Some(b'-') => (&mut change.clear, &mut change.set),
                Some(_) => (&mut change.set, &mut change.clear),
                None => return Err("a change begins with +, - or =".to_owned()),
            };
            *to |= xflag;
            *from &= !xflag;
        }
        match sign {
            Some(_) if change.set | change.clear != 0 => Ok(change),
            _ => Err("it changes nothing: +, - or =, and letters of aAdiPS".to_owned()),
        }
    }
}

fn known(letter: u8) -> Result<&'static Flag, String> {
    if let Some(flag) = FLAGS.iter().find(|flag| flag.letter == letter) {
        return Ok(flag);
    }
    let shown = char::from(letter);
    Err(match OTHERS.iter().find(|(other, _)| *other == letter) {
        Some((_, meaning)) => {
            format!("{shown} ({meaning}) is no flag that XFS keeps; those are a, A, d, i, P and S")
        }
        None => format!("{} is no flag; those of XFS are a, A, d, i, P and S", shown.escape_debug()),
    })
}

impl FlagChange {
    /// The name of a flag to set that only directories have, if there is one.
    pub fn of_dirs_alone(&self) -> Option<&'static str> {
        FLAGS.iter().find(|flag| flag.of_dirs && self.set & flag.xflag != 0).map(|flag| flag.name)
    }

    /// The change for a file, if there is one: bits that already have their value are no change.
    pub fn of(&self, file: &Metadata) -> Option<Changes> {
        let mut changes = Changes::default();
        let mut any = false;
        for flag in &FLAGS {
            let has = file.xflags & flag.xflag != 0;
            let wanted = (has || self.set & flag.xflag != 0) && self.clear & flag.xflag == 0;
            if wanted != has && (file.is_dir() || !flag.of_dirs) {
                *(flag.field)(&mut changes) = Some(wanted);
                any = true;
            }
        }
        any.then_some(changes)
    }
}

/// The letters of a file's flags, as `lsattr` has them.
pub fn letters(file: &Metadata) -> String {
    FLAGS.iter().filter(|flag| file.xflags & flag.xflag != 0).map(|flag| char::from(flag.letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_added_taken_and_set() {
        let change = |text: &str| text.parse::<FlagChange>();
        assert_eq!(change("+ia"), Ok(FlagChange { set: 0x18, clear: 0 }));
        assert_eq!(change("-i+d"), Ok(FlagChange { set: 0x80, clear: 0x8 }));
        assert_eq!(change("=A"), Ok(FlagChange { set: 0x40, clear: 0x2b8 }));
        assert_eq!(change("="), Ok(FlagChange { set: 0, clear: 0x2f8 }));
        for wrong in ["", "i", "+", "-", "u+x"] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
        assert!(change("+s").unwrap_err().starts_with("s (secure deletion) is no flag that XFS keeps"));
        assert!(change("+ix").unwrap_err().starts_with("x (direct access to memory)"));
    }
}
