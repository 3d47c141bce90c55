//! `uxfs du`: how much space files take, a file with several names counted once.

use crate::exit::{Exit, Result};
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, human_size, put_name};
use crate::problems::{Problems, for_each};
use crate::walk::{EntryOrder, InodeSet, Step, Walk};
use uxfs::{Metadata, Volume};

/// Arguments of `du`.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Directories or files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Only the sum for each argument
    #[arg(short, long)]
    summarize: bool,
    /// Human-readable sizes (default: KiB)
    #[arg(short, long)]
    human_readable: bool,
    /// Count files too, not only directories
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Count bytes of content, not allocated space
    #[arg(long)]
    apparent_size: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Prints the space under each location.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let mut images = Images::new(global);
    let mut out = Output::new(global);
    let exit = for_each(&args.locations, &mut Problems::default(), |location, problems| {
        let volume = images.volume(location)?;
        count(args, location, &volume, &mut out, problems)
    })?;
    out.finish()?;
    Ok(exit)
}

fn count(
    args: &Args,
    location: &Location,
    volume: &Volume,
    out: &mut Output,
    problems: &mut Problems,
) -> Result<()> {
    let start = volume.lookup_nofollow(&location.path).map_err(|error| location.failure(&error))?;
    let mut walk = Walk::new(volume, start, &location.path, EntryOrder::Stored).with_inodes();
    let mut seen = InodeSet::default();
    // Bytes of each directory on the way down.
    let mut sums: Vec<u64> = Vec::new();
    while let Some(step) = walk.next() {
        match step {
            Step::Enter(node) => sums.push(match node.metadata() {
                Ok(of) => space(args, &of),
                Err(error) => {
                    problems.at(&location.image, walk.path(), &error);
                    0
                }
            }),
            Step::Leave(_) => {
                let sum = sums.pop().unwrap_or_default();
                if let Some(above) = sums.last_mut() {
                    *above = above.saturating_add(sum);
                }
                if walk.depth() == 0 || !args.summarize {
                    print(args, walk.path(), sum, out)?;
                }
            }
            Step::Leaf(leaf) => match leaf.metadata(volume) {
                Err(error) => problems.at(&location.image, walk.path(), &error),
                Ok(of) if of.nlink > 1 && !seen.insert(of.ino) => {}
                Ok(of) => {
                    let bytes = space(args, &of);
                    if let Some(sum) = sums.last_mut() {
                        *sum = sum.saturating_add(bytes);
                    }
                    if args.all || walk.depth() == 0 {
                        print(args, walk.path(), bytes, out)?;
                    }
                }
            },
            Step::Failed(error) => problems.at(&location.image, walk.path(), &error),
            Step::Damaged(what) => problems.at(&location.image, walk.path(), what),
        }
    }
    Ok(())
}

fn space(args: &Args, of: &Metadata) -> u64 {
    if !args.apparent_size {
        return of.blocks.saturating_mul(512);
    }
    if of.is_file() || of.is_symlink() { of.size } else { 0 }
}

fn print(args: &Args, path: &[u8], bytes: u64, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let mut object = Object::new();
        put_name(&mut object, "path", path);
        object.insert("bytes".to_owned(), bytes.into());
        return out.object(object);
    }
    if args.human_readable {
        out.text(format_args!("{}\t", human_size(bytes)))?;
    } else {
        out.text(format_args!("{}\t", bytes.div_ceil(1024)))?;
    }
    out.name(path)?;
    out.text("\n")
}
