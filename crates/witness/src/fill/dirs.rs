//! Directories of every form, with deletions in them; the one very large directory; depth.

use super::Sizes;
use super::site::Site;
use anyhow::Result;

/// Files that the entries of a directory of links name.
const TARGETS: usize = 16;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    let targets = targets(site)?;
    let largest = sizes.many(20_000, 2_000);
    let mut count = 1;
    while count <= largest {
        for kept in ["all", "most", "few", "middle-gone", "none"] {
            let mut dir = site.child(format!("{count}-{kept}").as_bytes())?;
            let names = link_many(&mut dir, site, &targets, count)?;
            thin_out(&mut dir, names, kept)?;
        }
        count = count * 5 / 2 + 1;
    }
    grown_again(site, &targets, largest)?;
    subdirectories(site, sizes.many(300, 20))?;
    empty(site, sizes.many(100, 10))?;
    deep(site, sizes.many(200, 60))?;
    renamed(site)
}

/// One directory with `big_dir` entries at least, of which some are real files and many were removed.
pub(super) fn fill_big(site: &mut Site, sizes: &Sizes) -> Result<()> {
    let targets = targets(site)?;
    let mut dir = site.child(b"directory")?;
    let surplus = sizes.big_dir / 20 + 1;
    let mut names = Vec::new();
    for index in 0..sizes.big_dir + surplus {
        let len = dir.rng.usize(8..=32);
        let mut name = format!("{index:x}-").into_bytes();
        name.resize_with(len.max(name.len()), || dir.rng.u8(b'a'..=b'z'));
        if dir.rng.u8(..) < 8 {
            dir.touch(&name)?;
        } else {
            let target = dir.rng.choice(&targets).expect("there are targets");
            dir.link(site, target, &name)?;
        }
        names.push(name);
    }
    // Half of what goes lies together, so that whole blocks become free; the rest is scattered.
    let together = (surplus / 2) as usize;
    let start = dir.rng.usize(0..names.len() - together);
    let mut gone: Vec<_> = names.drain(start..start + together).collect();
    dir.rng.shuffle(&mut names);
    gone.extend(names.drain(..(surplus as usize - together)));
    gone.iter().try_for_each(|name| dir.unlink(name))
}

fn targets(site: &mut Site) -> Result<Vec<Vec<u8>>> {
    let targets: Vec<_> = (0..TARGETS).map(|index| format!("target-{index}").into_bytes()).collect();
    for target in &targets {
        let len = site.rng.usize(0..2_000);
        site.file(target, len)?;
    }
    Ok(targets)
}

/// Fills `dir` with `count` links to the targets.
fn link_many(dir: &mut Site, targets_at: &Site, targets: &[Vec<u8>], count: u64) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    while (names.len() as u64) < count {
        let len = if dir.rng.u8(..) < 10 { dir.rng.usize(100..=255) } else { dir.rng.usize(1..=24) };
        let name = dir.name(len);
        let target = dir.rng.choice(targets).expect("there are targets");
        if dir.link(targets_at, target, &name)? {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes names so that what `kept` says remains.
fn thin_out(dir: &mut Site, mut names: Vec<Vec<u8>>, kept: &str) -> Result<()> {
    let count = names.len();
    let gone: Vec<_> = match kept {
        "all" => Vec::new(),
        "middle-gone" => names.drain(count / 3..count - count / 3).collect(),
        "none" => names,
        _ => {
            dir.rng.shuffle(&mut names);
            names.drain(..if kept == "most" { count / 5 } else { count - count / 30 }).collect()
        }
    };
    gone.iter().try_for_each(|name| dir.unlink(name))
}

/// A directory that was large, became small, and grew again into the space that was free in it.
fn grown_again(site: &mut Site, targets: &[Vec<u8>], count: u64) -> Result<()> {
    let mut dir = site.child(b"grown-again")?;
    let names = link_many(&mut dir, site, targets, count)?;
    thin_out(&mut dir, names, "few")?;
    link_many(&mut dir, site, targets, count / 2).map(drop)
}

/// Entries of every type, so that their type is in the directory too.
fn subdirectories(site: &mut Site, count: u64) -> Result<()> {
    let dir = site.child(b"subdirectories")?;
    for index in 0..count {
        dir.mkdir(format!("d{index}").as_bytes())?;
    }
    for index in (0..count).step_by(5) {
        dir.rmdir(format!("d{index}").as_bytes())?;
    }
    Ok(())
}

fn empty(site: &mut Site, count: u64) -> Result<()> {
    let dir = site.child(b"empty")?;
    (0..count).try_for_each(|index| dir.mkdir(format!("{index:05}").as_bytes()))
}

fn deep(site: &mut Site, depth: u64) -> Result<()> {
    let mut dir = site.child(b"deep")?;
    for level in 0..depth {
        dir.touch(b"file")?;
        let len = if level % 10 == 0 { 255 } else { dir.rng.usize(1..=20) };
        let name: Vec<u8> = (0..len).map(|_| dir.rng.u8(b'a'..=b'e')).collect();
        dir = dir.child(&name)?;
    }
    dir.touch(b"bottom")
}

/// Moves within and between directories, which rewrite entries and the `..` of a directory.
fn renamed(site: &mut Site) -> Result<()> {
    let mut from = site.child(b"renamed-from")?;
    let mut to = site.child(b"renamed-to")?;
    for index in 0..12u8 {
        let (file, dir) = ([b'f', index + 1], [b'd', index + 1]);
        from.file(&file, usize::from(index) * 100)?;
        from.child(&dir)?.touch(b"inside")?;
        let new = to.name(usize::from(index) * 20 + 3);
        from.rename(&file, &to, &new)?;
        if index % 2 == 0 {
            from.rename(&dir, &to, &dir)?;
        }
    }
    to.touch(b"a")?;
    to.mkdir(b"b")?;
    to.exchange(b"a", b"b")
}
