//! `uxfs grow`: makes a volume larger.

use crate::exit::{Exit, Failure, Result, host_name};
use crate::interrupt;
use crate::location::{self, Location, image_parser};
use crate::options::{Global, parse_size};
use crate::output::{Object, Output};
use crate::problems;
use serde_json::{Value, json};

/// Arguments of `grow`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device; it must not be mounted
    #[arg(value_name = "IMAGE", value_parser = image_parser())]
    image: Location,
    /// New size of the volume, with a suffix: K, M, G, T, s; an image file that is too short is extended (default: all
    /// of the file, device or partition)
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
}

/// Makes the volume larger, and says how large it is.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let image = &args.image.image;
    location::check(image)?;
    let how = args.image.options(global)?;
    interrupt::watch();
    let grown = uxfs::grow_unless(image, args.size, &how, &interrupt::asked);
    let grown = grown.map_err(|error| args.image.failure(&error))?;
    if grown.stopped {
        return Err(Failure::new(Exit::Interrupted, "interrupted; the volume is as large as it was"));
    }
    if grown.left_out > 0 {
        let name = host_name(&args.image.name());
        let what = format!("the last {} bytes are left out, too few for a group", grown.left_out);
        problems::complain(&format!("{name}: {what}"));
    }
    let mut out = Output::new(global);
    if out.is_json() {
        let fields = json!({ "from": grown.from, "to": grown.to, "left_out": grown.left_out });
        let Value::Object(fields) = fields else { return Ok(Exit::Ok) };
        out.object(Object::from_iter(fields))?;
    } else if grown.to == grown.from {
        out.text(format_args!("{} bytes, as before\n", grown.to))?;
    } else {
        out.text(format_args!("{} bytes, {} before\n", grown.to, grown.from))?;
    }
    out.finish()?;
    Ok(Exit::Ok)
}
