//! Copies files and trees of the host, or of images, into an image.
//!
//! A copy into an image acts as root of the image, whoever runs it: as with root's `cp` on a mounted volume, new files
//! belong to root, and `-a` keeps everything that a volume can hold: holes, permissions, owners, times to the
//! nanosecond, hard links among what is copied, symbolic links, devices, attributes, access control lists.

use super::{Args, Attribute, is_image, not_shared};
use crate::commands::untar::say_lost;
use crate::edit;
use crate::exit::{Exit, Failure, Result, host_name};
use crate::fill::host::{self, FromHost, Target, file_name};
use crate::fill::image::{self, FromImage};
use crate::fill::stream::Stream;
use crate::fill::{Filler, Reflink, Rules};
use crate::location::{Images, Location};
use crate::mode::umask;
use crate::options::Global;
use crate::problems::Problems;
use crate::progress;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uxfs::{Node, Volume};

/// What is copied.
enum Source {
    Host(PathBuf),
    Image(Location),
    Stdin,
}

impl Source {
    /// A path of the host, unless it does not exist and its part before `:/` is an image.
    fn parse(text: &std::ffi::OsStr) -> Self {
        if text == "-" {
            return Self::Stdin;
        }
        let (path, location) = (Path::new(text), Location::parse(text));
        if path.symlink_metadata().is_err() && location.image != path && is_image(&location.image) {
            return Self::Image(location);
        }
        Self::Host(path.to_owned())
    }

    fn file_name(&self) -> Option<Vec<u8>> {
        match self {
            Self::Host(path) => file_name(path),
            Self::Image(location) => location.file_name().map(<[u8]>::to_vec),
            Self::Stdin => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Host(path) => host_name(path),
            Self::Image(location) => {
                format!("{}: {}", host_name(&location.image), uxfs::printable(&location.path))
            }
            Self::Stdin => "standard input".to_owned(),
        }
    }
}

/// Copies each source to `destination`.
pub fn run(args: &Args, destination: &Location, global: &Global) -> Result<Exit> {
    let global = &global.at_source_date()?;
    let bar = progress::bytes();
    let rules = Rules {
        keep: args.keep(),
        keep_links: args.keeps(Attribute::Links),
        owner: args.owner.unwrap_or_default(),
        time: global.time,
        inherit: true,
        umask: umask(),
        exact: false,
        reflink: args.reflink,
        existing: args.existing(),
        trust: args.trust(),
        verbose: global.verbose,
        threads: args.threads.count_for_changes(1, global.is_ordered()),
    };
    let mut filler = Filler::new(rules, &bar);
    let mut problems = Problems::beside(&bar);
    let done = edit::fill(global, destination, |volume| {
        Copy {
            args,
            destination,
            volume,
            filler: &mut filler,
            problems: &mut problems,
            images: Images::new(global),
            host_links: host::Links::default(),
            image_links: BTreeMap::new(),
        }
        .all()
    });
    bar.finish_and_clear();
    done?;
    say_lost(&filler);
    Ok(problems.exit())
}

/// Whether to give up.
fn ends(failure: &Failure) -> bool {
    matches!(failure.exit(), Exit::NoSpace | Exit::Interrupted | Exit::Limit)
}

/// A copy in progress.
struct Copy<'a, 'b> {
    args: &'a Args,
    destination: &'a Location,
    volume: &'a Volume,
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    /// Images that are read.
    images: Images<'a>,
    host_links: host::Links,
    /// By the number of the image that is read; `None`: the one that is written.
    image_links: BTreeMap<Option<usize>, image::Links>,
}

impl Copy<'_, '_> {
    fn all(mut self) -> Result<()> {
        let there = edit::existing(self.volume, self.destination, true)?;
        let into = there.as_ref().is_some_and(|node| node.file_type().is_dir());
        let refused = |what| Err(edit::refused(self.destination, Exit::Usage, what));
        if !into && self.args.sources.len() > 1 {
            return refused("not a directory; several things are copied into one");
        }
        if there.is_some() && !into && edit::ends_in_slash(&self.destination.path) {
            return refused("not a directory");
        }
        let sources: Vec<Source> = self.args.sources.iter().map(|source| Source::parse(source)).collect();
        for source in &sources {
            match self.source(source, there.as_ref()) {
                Ok(()) => {}
                Err(failure) if sources.len() == 1 || ends(&failure) => return Err(failure),
                Err(failure) => self.problems.say(&failure.to_string()),
            }
        }
        Ok(())
    }

    fn source(&mut self, source: &Source, there: Option<&Node>) -> Result<()> {
        let recursive = self.args.recursive();
        let within = matches!(source, Source::Image(location) if location.shares_volume(self.destination));
        if self.args.reflink == Reflink::Always && !within {
            return Err(not_shared(&source.describe()));
        }
        match source {
            Source::Stdin => {
                let target = self.target(source, false, there)?;
                self.stream(source, Stream::Stdin(std::io::stdin()), target)
            }
            Source::Host(path) => {
                // A path that cannot be examined fails below, with its name.
                let stream = if recursive { None } else { Stream::of(path).ok().flatten() };
                if let Some(stream) = stream {
                    let target = self.target(source, false, there)?;
                    return self.stream(source, stream, target);
                }
                let is_dir = path.metadata().is_ok_and(|found| found.is_dir())
                    && !(recursive && path.symlink_metadata().is_ok_and(|found| found.is_symlink()));
                let target = self.target(source, is_dir, there)?;
                let follow = !recursive || path.as_os_str().as_encoded_bytes().ends_with(b"/");
                let links = &mut self.host_links;
                FromHost::new(self.filler, self.problems, links, &self.destination.image)
                    .copy(path, target, follow)
            }
            Source::Image(location) => {
                let same = location.shares_volume(self.destination);
                let volume = if same { self.volume.clone() } else { self.images.volume(location)? };
                let path = &location.path;
                let node = if recursive { volume.lookup_nofollow(path) } else { volume.lookup(path) };
                let node = node.map_err(|error| location.failure(&error))?;
                let target = self.target(source, node.file_type().is_dir(), there)?;
                let links =
                    self.image_links.entry(self.images.number(location).filter(|_| !same)).or_default();
                FromImage::new(self.filler, self.problems, links, &volume, location, same).copy(node, target)
            }
        }
    }

    fn stream(&mut self, source: &Source, stream: Stream, target: Target) -> Result<()> {
        let Some(name) = target.name else {
            let what = format!("{}: not a directory", source.describe());
            return Err(Failure::new(Exit::NotFound, what));
        };
        self.filler.start(&target.path);
        stream.copy(self.filler, &target.dir, &name).map_err(|trouble| trouble.failure(source.describe()))
    }

    /// The place of a source's copy.
    fn target(&self, source: &Source, is_dir: bool, there: Option<&Node>) -> Result<Target> {
        let place = source.describe();
        if is_dir && !self.args.recursive() {
            return Err(Failure::new(Exit::NotFound, format!("{place}: is a directory; give -r to copy it")));
        }
        let refused = |what| edit::refused(self.destination, Exit::Usage, what);
        match there.map(|node| (node, node.as_dir())) {
            Some((_, Ok(_))) if matches!(source, Source::Stdin) => {
                Err(refused("a directory; standard input has no name, so give the copy one"))
            }
            Some((_, Ok(dir))) => {
                Ok(Target { dir, path: self.destination.path.clone(), name: source.file_name() })
            }
            Some(_) if is_dir => Err(refused("not a directory; a directory cannot be copied over it")),
            None if !is_dir && edit::ends_in_slash(&self.destination.path) => Err(refused("not a directory")),
            _ => {
                let (dir, name) = edit::parent(self.volume, self.destination)?;
                let path = edit::split(&self.destination.path).map_or(&b""[..], |(parent, _)| parent);
                Ok(Target { dir, path: path.to_vec(), name: Some(name.to_vec()) })
            }
        }
    }
}
