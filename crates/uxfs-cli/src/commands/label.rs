//! `uxfs label`: shows or sets a volume's label.

use crate::edit;
use crate::exit::{Exit, Result};
use crate::location::{Images, Location, image_parser};
use crate::options::Global;
use crate::output::{Object, Output, put_name};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `label`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device
    #[arg(value_name = "IMAGE", value_parser = image_parser())]
    image: Location,
    /// The new label, of 12 bytes at most; an empty one removes it
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
}

/// Shows the label, or sets it.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let failure = |error| args.image.failure(&error);
    if let Some(label) = &args.label {
        edit::change(global, &args.image, |volume| volume.set_label(label.as_bytes()).map_err(failure))?;
        return Ok(Exit::Ok);
    }
    let label = Images::new(global).volume(&args.image)?.info().map_err(failure)?.label;
    let mut out = Output::new(global);
    if out.is_json() {
        let mut object = Object::new();
        put_name(&mut object, "label", &label);
        out.object(object)?;
    } else {
        out.name(&label)?;
        out.text("\n")?;
    }
    out.finish()?;
    Ok(Exit::Ok)
}
