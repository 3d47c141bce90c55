//! `uxfs upgrade`: switches on features of a volume in place.

use crate::exit::{Exit, Result, host_name};
use crate::interrupt;
use crate::location::{self, Location, image_parser};
use crate::options::Global;
use crate::problems::complain;
use std::str::FromStr;
use uxfs::Upgrade;

/// Arguments of `upgrade`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device; it must not be mounted, and its log must be clean
    #[arg(value_name = "IMAGE", value_parser = image_parser())]
    image: Location,
    /// Features to switch on, all or none: bigtime, inobtcount, nrext64
    #[arg(short = 'O', value_name = "FEATURE,…", value_delimiter = ',', required = true)]
    features: Vec<Wanted>,
}

/// A feature as given on the command line.
#[derive(Clone, Copy, Debug)]
struct Wanted(Upgrade);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let name = match text.split_once('=') {
            None | Some((_, "1")) => text.trim_end_matches("=1"),
            Some((name, "0")) => return Err(format!("{name} cannot be switched off")),
            Some(_) => return Err(format!("`{text}`: =1 switches a feature on")),
        };
        let unknown = || format!("{name} cannot be switched on in place");
        Upgrade::of_name(name).map(Self).ok_or_else(unknown)
    }
}

/// Switches features on.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let image = &args.image.image;
    location::check(image)?;
    let how = args.image.options(global)?;
    interrupt::watch();
    let features: Vec<_> = args.features.iter().map(|wanted| wanted.0).collect();
    let there = uxfs::upgrade(image, &features, &how).map_err(|error| args.image.failure(&error))?;
    if !there.is_empty() {
        let names: Vec<_> = there.into_iter().map(Upgrade::name).collect();
        let name = host_name(&args.image.name());
        complain(&format!("{name}: the volume has {} already; the rest is switched on", names.join(", ")));
    }
    Ok(Exit::Ok)
}
