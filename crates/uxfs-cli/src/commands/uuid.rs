//! `uxfs uuid`: shows or sets a volume's UUID.

use crate::exit::{Exit, Result};
use crate::interrupt;
use crate::location::{self, Images, Location, image_parser};
use crate::options::Global;
use crate::output::{Object, Output};
use std::str::FromStr;
use uuid::Uuid;
use uxfs::NewUuid;

/// Arguments of `uuid`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device
    #[arg(value_name = "IMAGE", value_parser = image_parser())]
    image: Location,
    /// The new one: a UUID, `generate` for a random one, `nil` for none (the kernel mounts it only with nouuid), `restore`
    /// for the one that the volume was made with
    #[arg(value_name = "UUID")]
    uuid: Option<Wanted>,
}

/// A UUID as given on the command line.
#[derive(Clone, Copy, Debug)]
struct Wanted(NewUuid);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Ok(Self(match text {
            "generate" => NewUuid::Random,
            "nil" => NewUuid::To([0; 16]),
            "restore" => NewUuid::Restore,
            _ => match Uuid::parse_str(text) {
                Ok(uuid) => NewUuid::To(uuid.into_bytes()),
                Err(error) => return Err(error.to_string()),
            },
        }))
    }
}

/// Shows the UUID, or changes it and shows the new one.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let failure = |error| args.image.failure(&error);
    let uuid = match args.uuid {
        Some(Wanted(uuid)) => {
            location::check(&args.image.image)?;
            let how = args.image.options(global)?;
            interrupt::watch();
            uxfs::set_uuid(&args.image.image, uuid, &how).map_err(failure)?
        }
        None => Images::new(global).volume(&args.image)?.info().map_err(failure)?.uuid,
    };
    let mut out = Output::new(global);
    if out.is_json() {
        out.object(Object::from_iter([("uuid".to_owned(), uuid.into())]))?;
    } else {
        out.text(format_args!("{uuid}\n"))?;
    }
    out.finish()?;
    Ok(Exit::Ok)
}
