//! Debian's kernel: fetched as a package, unpacked into a folder, not installed.

use crate::command::{output, run};
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that names the current kernel for virtual machines.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// An unpacked kernel.
#[derive(Debug)]
pub struct DebianKernel {
    /// The image to boot.
    pub image: PathBuf,
    modules: PathBuf,
}

impl DebianKernel {
    /// The kernel in `dir`; fetches it if there is none.
    pub fn at(dir: &Path) -> Result<Self> {
        match Self::find(dir) {
            Ok(kernel) => Ok(kernel),
            Err(_) => {
                Self::fetch(dir)?;
                Self::find(dir)
            }
        }
    }

    /// Its default folder: beside the program, so that a clean build starts over.
    pub fn default_dir() -> Result<PathBuf> {
        let program = std::env::current_exe()?;
        let target = program.parent().and_then(Path::parent).context("where the program lies")?;
        Ok(target.join("witness-kernel"))
    }

    fn fetch(dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let package = match current_package() {
            Ok(package) => package,
            // The package lists were never fetched, or were removed, as in containers.
            Err(_) => {
                run(Command::new("apt-get").args(["-q", "update"]))?;
                current_package()?
            }
        };
        run(Command::new("apt-get").args(["-q", "download", &package]).current_dir(dir))?;
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg").arg("-x").arg(&path).arg(dir))?;
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn find(dir: &Path) -> Result<Self> {
        let boot = fs::read_dir(dir.join("boot"))?;
        for entry in boot {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(version) = name.strip_prefix("vmlinuz-") {
                let modules = dir.join("lib/modules").join(version);
                return Ok(Self { image: path.clone(), modules });
            }
        }
        bail!("no kernel in {}", dir.display())
    }

    /// The module files that `wanted` need, in the order in which they must be loaded.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let mut files = HashMap::new();
        index(&self.modules, &mut files)?;
        let mut order = Vec::new();
        for name in wanted {
            load_after_needs(name, &files, &mut order, 0)?;
        }
        Ok(order)
    }
}

/// The package that holds the kernel that [`META_PACKAGE`] stands for.
fn current_package() -> Result<String> {
    let depends = output(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    let package = depends.split_whitespace().find(|word| word.starts_with("linux-image-6"));
    package.map(str::to_owned).with_context(|| format!("no kernel behind {META_PACKAGE}: is this Debian?"))
}

/// Deepest chain of modules that need each other.
const MAX_DEPTH: u32 = 32;

/// Adds a module behind all that it needs.
fn load_after_needs(
    name: &str,
    files: &HashMap<String, PathBuf>,
    order: &mut Vec<PathBuf>,
    depth: u32,
) -> Result<()> {
    ensure!(depth < MAX_DEPTH, "modules that need each other in a circle");
    let path = files.get(name).with_context(|| format!("no module {name}"))?;
    if order.contains(path) {
        return Ok(());
    }
    for need in needs(&fs::read(path)?) {
        load_after_needs(&need, files, order, depth + 1)?;
    }
    order.push(path.clone());
    Ok(())
}

/// The modules that a module names as those it needs: a string among its information, `depends=a,b`. (Debian
/// makes its index of them only when it installs a kernel.)
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = value.split(|&byte| byte == b',').filter(|name| !name.is_empty());
    names.map(|name| module_name(&String::from_utf8_lossy(name))).collect()
}

/// Finds every module file below `dir`.
fn index(dir: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            index(&entry.path(), files)?;
        } else if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".ko")) {
            files.insert(module_name(name), entry.path());
        }
    }
    Ok(())
}

/// Files spell some names with dashes, references with underscores.
fn module_name(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_read_from_module_information() {
        assert_eq!(
            needs(b"\x7fELF...\0license=GPL\0depends=lib-crc32c,virtio\0name=x\0"),
            ["lib_crc32c", "virtio"]
        );
        assert!(needs(b"\0depends=\0").is_empty());
        assert!(needs(b"nothing").is_empty());
    }
}
