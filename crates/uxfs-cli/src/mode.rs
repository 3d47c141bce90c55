//! Permissions and owners as given on the command line.

use std::str::FromStr;

/// Set-user-id and set-group-id.
const SET_IDS: u16 = 0o6000;

/// A change of permissions: octal, or `u+x,go=r` as `chmod` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    /// These permissions. `keep_ids`: a directory keeps set-user-id and set-group-id unless they are given.
    Octal {
        /// The permissions.
        mode: u16,
        /// Whether they were written with fewer than five digits.
        keep_ids: bool,
    },
    /// One after the other.
    Symbolic(Vec<Clause>),
}

/// `go-w`: who, the action, and the bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// The bits of the classes concerned; `None`: all, except those in the umask.
    who: Option<u16>,
    action: Action,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Bits for all three classes, including `s` and `t`, and whether `X` was given.
    Bits(u16, bool),
    /// The bits of a class, by its shift.
    CopyOf(u16),
}

impl ModeChange {
    /// Applies the change to `mode`.
    pub fn apply(&self, mode: u16, is_dir: bool, umask: u16) -> u16 {
        match self {
            Self::Octal { mode: new, keep_ids } => {
                let kept = if is_dir && *keep_ids { mode & SET_IDS } else { 0 };
                new | kept
            }
            Self::Symbolic(clauses) => {
                clauses.iter().fold(mode, |mode, clause| clause.apply(mode, is_dir, umask))
            }
        }
    }
}

impl Clause {
    fn apply(&self, mode: u16, is_dir: bool, umask: u16) -> u16 {
        let who = self.who.unwrap_or(0o7777);
        let mut bits = match self.what {
            What::Bits(bits, if_executable) => {
                let execute = if_executable && (is_dir || mode & 0o111 != 0);
                bits | if execute { 0o111 } else { 0 }
            }
            What::CopyOf(shift) => (mode >> shift & 7) * 0o111,
        } & who;
        if self.who.is_none() {
            bits &= !umask;
        }
        match self.action {
            Action::Add => mode | bits,
            Action::Remove => mode & !bits,
            Action::Set => {
                // A directory's set-ids are cleared only if they are named.
                let kept = if is_dir { mode & SET_IDS } else { 0 };
                mode & !who | bits | kept
            }
        }
    }
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither octal nor like u+x,go=r");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let mode = u16::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o7777).ok_or_else(wrong)?;
            return Ok(Self::Octal { mode, keep_ids: text.len() < 5 });
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            clause(part, &mut clauses).ok_or_else(wrong)?;
        }
        Ok(Self::Symbolic(clauses))
    }
}

/// `ugo+rw-x`: classes, then actions.
fn clause(text: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let actions = text.find(['+', '-', '='])?;
    let (who, mut rest) = text.split_at(actions);
    let who = who.bytes().try_fold(0, |bits, letter| {
        Some(
            bits | match letter {
                b'u' => 0o4700,
                b'g' => 0o2070,
                b'o' => 0o1007,
                b'a' => 0o7777,
                _ => return None,
            },
        )
    })?;
    while let Some(sign) = rest.bytes().next() {
        let action = match sign {
            b'+' => Action::Add,
            b'-' => Action::Remove,
            _ => Action::Set,
        };
        let behind = rest.get(1..)?;
        let (bits, next) = behind.split_at(behind.find(['+', '-', '=']).unwrap_or(behind.len()));
        clauses.push(Clause { who: (who != 0).then_some(who), action, what: what(bits)? });
        rest = next;
    }
    Some(())
}

fn what(text: &str) -> Option<What> {
    match text {
        "u" => return Some(What::CopyOf(6)),
        "g" => return Some(What::CopyOf(3)),
        "o" => return Some(What::CopyOf(0)),
        _ => {}
    }
    let (mut bits, mut if_executable) = (0, false);
    for letter in text.bytes() {
        match letter {
            b'r' => bits |= 0o444,
            b'w' => bits |= 0o222,
            b'x' => bits |= 0o111,
            b'X' => if_executable = true,
            b's' => bits |= SET_IDS,
            b't' => bits |= 0o1000,
            _ => return None,
        }
    }
    Some(What::Bits(bits, if_executable))
}

/// `UID`, `UID:GID` or `:GID`, in numbers: an image knows no names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The owner, if it was given.
    pub uid: Option<u32>,
    /// The group, if it was given.
    pub gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not UID[:GID]; an image knows no names, only numbers");
        let id = |text: &str| match text {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| wrong()),
        };
        let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
        let owner = Self { uid: id(uid)?, gid: id(gid)? };
        if owner == Self::default() { Err(wrong()) } else { Ok(owner) }
    }
}

/// The umask of this process.
pub fn umask() -> u16 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    // Only the nine lowest bits can be set.
    u16::try_from(umask.bits() & 0o777).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_chmod() {
        for (text, mode, is_dir, wanted) in [
            ("644", 0o4755, false, 0o644),
            ("755", 0o2700, true, 0o2755),
            ("00755", 0o2700, true, 0o755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("go-rwx,u=rw", 0o777, false, 0o600),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o744, false, 0o755),
            ("a+X", 0o600, true, 0o711),
            ("g=u", 0o740, false, 0o770),
            ("u+s,g+s", 0o755, false, 0o6755),
            ("+t", 0o777, true, 0o1777),
            ("u=rwx", 0o4000, false, 0o700),
            ("u=rwx", 0o4000, true, 0o4700),
            ("o=", 0o777, false, 0o770),
            ("u+r-w+x", 0o200, false, 0o500),
        ] {
            let change: ModeChange = text.parse().unwrap();
            assert_eq!(change.apply(mode, is_dir, 0o022), wanted, "{text} of {mode:o}");
        }
        for text in ["", "8", "77777", "u", "x+r", "u+q", "u+x,"] {
            assert!(text.parse::<ModeChange>().is_err(), "{text}");
        }
    }

    #[test]
    fn owners_are_numbers() {
        let owner = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!("7".parse(), owner(Some(7), None));
        assert_eq!("7:4294967294".parse(), owner(Some(7), Some(4_294_967_294)));
        assert_eq!(":8".parse(), owner(None, Some(8)));
        for text in ["", ":", "root", "1:2:3", "-1"] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
    }
}
