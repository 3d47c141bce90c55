//! The machine of a run, by its own account.

use std::fs;

/// What a reader needs to know of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Names and values, in order.
    pub facts: Vec<(&'static str, String)>,
}

impl Machine {
    /// This machine. Unknown values are left out.
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cores = std::thread::available_parallelism().ok().map(|cores| cores.to_string());
        let sys = |name: &str| read(&format!("/proc/sys/kernel/{name}")).trim().to_owned();
        let kernel = format!("{} {} {}", sys("ostype"), sys("osrelease"), std::env::consts::ARCH);
        let facts = [
            ("Processor", field(&read("/proc/cpuinfo"), "model name", ':')),
            ("Cores that may be used", cores),
            ("Memory", field(&read("/proc/meminfo"), "MemTotal", ':').map(|text| gibibytes(&text))),
            ("Kernel", Some(kernel)),
            ("System", field(&read("/etc/os-release"), "PRETTY_NAME", '=')),
        ];
        Self { facts: facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect() }
    }
}

/// The value of a line `name: value`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    let value = text.lines().find_map(|line| {
        let (found, value) = line.split_once(separator)?;
        (found.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
    });
    value.filter(|value| !value.is_empty())
}

/// `24576000 kB` as GiB.
fn gibibytes(text: &str) -> String {
    let kib: Option<f64> = text.split(' ').next().and_then(|number| number.parse().ok());
    kib.map_or_else(|| text.to_owned(), |kib| format!("{:.1} GiB", kib / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_in_what_the_system_says() {
        let text = "processor\t: 0\nmodel name\t: A \"fast\" one\n";
        assert_eq!(field(text, "model name", ':').as_deref(), Some("A \"fast\" one"));
        assert_eq!(field("PRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME", '=').as_deref(), Some("Debian 12"));
        assert_eq!(field(text, "bogomips", ':'), None);
        assert_eq!(gibibytes("25165824 kB"), "24.0 GiB");
        let this = Machine::this();
        assert!(this.facts.iter().any(|(name, value)| *name == "Kernel" && value.starts_with("Linux")));
    }
}
