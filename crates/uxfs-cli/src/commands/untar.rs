//! `uxfs untar`: unpacks an archive from standard input into an image.

use crate::archive::read::Reader;
use crate::edit;
use crate::exit::{Exit, Failure, Result, host_name};
use crate::fill::archive::FromArchive;
use crate::fill::{Existing, Filler, Reflink, Rules};
use crate::host::ahead::ahead;
use crate::host::attributes::Keep;
use crate::host::stream;
use crate::interrupt::Patient;
use crate::location::{Location, parser};
use crate::mode::{Owner, umask};
use crate::options::{Global, ThreadsArg};
use crate::problems::{Problems, complain};
use crate::progress;
use crate::trust::{Devices, TrustArgs};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Arguments of `untar`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub struct Args {
    /// The directory to unpack in
    #[arg(value_name = "IMAGE:/PATH", value_parser = parser())]
    location: Location,
    /// Read this file, not standard input (`-`)
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Owner of the files, as numbers (default: as in the archive)
    #[arg(long, value_name = "UID[:GID]")]
    owner: Option<Owner>,
    #[command(flatten)]
    threads: ThreadsArg,
    #[command(flatten)]
    trust: TrustArgs,
}

const HELP: &str = "\
An existing directory keeps its access control lists, unless the archive has lists for it.

With SOURCE_DATE_EPOCH in the environment (seconds since 1970), files are made, last read and last changed at that \
time, and so is the content of directories that the archive does not name; times of content are the archive's.";

/// Unpacks.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let global = &global.at_source_date()?;
    let mut reader = Reader::new(input(args.input.as_deref(), &args.location.image)?);
    // The program that writes it may have to read the same image first.
    reader.look()?;
    let bar = progress::bytes();
    let rules = Rules {
        keep: Keep::ALL,
        keep_links: true,
        owner: args.owner.unwrap_or_default(),
        time: global.time,
        inherit: true,
        umask: umask(),
        exact: false,
        reflink: Reflink::Never,
        existing: Existing::LastCounts,
        trust: args.trust.trust(Devices::Made),
        verbose: global.verbose,
        threads: args.threads.count_for_changes(1, global.is_ordered()),
    };
    let mut filler = Filler::new(rules, &bar);
    let mut problems = Problems::beside(&bar);
    let done = edit::fill(global, &args.location, |volume| {
        let root = volume.open_dir(&args.location.path);
        let root = root.map_err(|error| edit::failure(&args.location, &error))?;
        FromArchive::new(&mut filler, &mut problems, root).unpack(reader)
    });
    bar.finish_and_clear();
    done?;
    say_lost(&filler);
    Ok(problems.exit())
}

/// Reports how many attributes were left out.
pub fn say_lost(filler: &Filler<'_>) {
    let lost = filler.lost_xattrs();
    if lost > 0 {
        complain(&format!("note: {lost} extended attributes were not kept: no volume can hold them"));
    }
}

fn input(path: Option<&Path>, image: &Path) -> Result<Box<dyn Read>> {
    if let Some(path) = path.filter(|path| path.as_os_str() != "-") {
        let file = File::open(path).map_err(|error| Failure::of_host(path, error))?;
        stream::refuse_image(&file, &host_name(path), image)?;
        return Ok(ahead(Patient::new(file)));
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let what = "untar: standard input is a terminal; redirect it, or give -i FILE";
        return Err(Failure::new(Exit::Usage, what));
    }
    stream::refuse_image(&stdin, "standard input", image)?;
    Ok(ahead(Patient::new(stdin)))
}
