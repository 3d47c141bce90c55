//! `uxfs cat`: content of files, to standard output.

use crate::exit::{Exit, Result};
use crate::host::stream;
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::Output;
use crate::problems::{Problems, for_each};
use uxfs::AlignedBuf;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// Arguments of `cat`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Regular files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
}

/// Writes each file's bytes.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    for location in &args.locations {
        stream::refuse_image(std::io::stdout(), "standard output", &location.image)?;
    }
    let mut images = Images::new(global);
    let mut out = Output::new(global);
    let mut buf = AlignedBuf::zeroed(CHUNK);
    let exit = for_each(&args.locations, &mut Problems::default(), |location, _| {
        let volume = images.volume(location)?;
        let failure = |error| location.failure(&error);
        let file = volume.open_file(&location.path).map_err(failure)?;
        let mut offset = 0;
        loop {
            let read = file.read_at(&mut buf, offset).map_err(failure)?;
            if read == 0 {
                return Ok(());
            }
            out.bytes(&buf[..read])?;
            offset += read as u64;
        }
    })?;
    out.finish()?;
    Ok(exit)
}
