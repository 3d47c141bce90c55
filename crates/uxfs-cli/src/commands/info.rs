//! `uxfs info`: shape, features and free space of a volume.

use crate::exit::{Exit, Result};
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, human_size, put_name};
use serde_json::{Value, json};
use uxfs::{Error, FeatureSupport, Kernels, Quota, Volume, VolumeInfo};

/// For counts that are marked as right.
const COUNTED: &str = "once it has written, the next kernel counts anew";

/// Arguments of `info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device
    #[arg(value_name = "IMAGE", value_parser = parser())]
    image: Location,
}

/// Prints the information about a volume.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let volume = Images::new(global).volume(&args.image)?;
    let shown = Shown::of(&volume).map_err(|error| args.image.failure(&error))?;
    let mut out = Output::new(global);
    shown.print(&mut out)?;
    out.finish()?;
    Ok(Exit::Ok)
}

/// The information that is shown.
pub struct Shown {
    info: VolumeInfo,
    /// Free blocks that files cannot use. `None`: unknown, as a group is damaged.
    kept: Option<u64>,
}

impl Shown {
    /// Information about a volume.
    pub fn of(volume: &Volume) -> std::result::Result<Self, Error> {
        Ok(Self { info: volume.info()?, kept: volume.kept_back_blocks().ok() })
    }

    /// Prints it, as JSON or as text.
    pub fn print(&self, out: &mut Output) -> Result<()> {
        if out.is_json() { out.object(object(self)) } else { text(self, out) }
    }
}

fn object(Shown { info, kept }: &Shown) -> Object {
    let mut object = Object::new();
    put_name(&mut object, "label", &info.label);
    let fields = json!({
        "version": info.version,
        "uuid": info.uuid,
        "block_size": info.block_size,
        "sector_size": info.sector_size,
        "inode_size": info.inode_size,
        "dir_block_size": info.dir_block_size,
        "blocks": info.blocks,
        "available_blocks": info.available_blocks,
        "free_blocks": info.free_blocks,
        "kept_back_blocks": kept,
        "inodes": info.inodes,
        "free_inodes": info.free_inodes,
        "ag_count": info.ag_count,
        "ag_blocks": info.ag_blocks,
        "log_blocks": info.log_blocks,
        "log_clean": info.log_clean,
        "root_ino": info.root_ino,
        "features": info.features,
        "feature_table": info.feature_table.iter().map(row).collect::<Vec<_>>(),
        "read_only_because": info.read_only_because,
        "kernels": kernels(&info.kernels),
        "quota": info.quota.as_ref().map(quota),
    });
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    object
}

/// The support for a feature.
fn row(feature: &FeatureSupport) -> Value {
    let FeatureSupport { name, read, written, checked, made, .. } = feature;
    json!({ "name": name, "read": read, "written": written, "checked": checked, "made": made })
}

fn kernels(of: &Kernels) -> Value {
    json!({
        "read": of.read,
        "read_because": of.read_because,
        "written": of.written,
        "written_because": of.written_because,
        "build_options": of.build_options,
    })
}

fn quota(of: &Quota) -> Value {
    json!({ "kinds": of.kinds, "counted": of.counted, "limits_enforced": false })
}

/// The first kernel that mounts it, or that none does, and which feature decides.
fn since(kernel: Option<&String>, because: &[String]) -> String {
    let because = if because.is_empty() { String::new() } else { format!(" ({})", because.join(", ")) };
    match kernel {
        Some(kernel) => format!("since {kernel}{because}"),
        None => format!("by none{because}"),
    }
}

/// For features without full support: what is missing.
fn missing(feature: &FeatureSupport) -> Option<String> {
    let FeatureSupport { read, written, checked, made, .. } = *feature;
    let not = [(read, "read"), (written, "written"), (checked, "checked"), (made, "made by mkfs")];
    let not: Vec<&str> = not.iter().filter(|(done, _)| !done).map(|(_, what)| *what).collect();
    (!not.is_empty()).then(|| format!("{}: not {}", feature.name, not.join(", not ")))
}

fn text(Shown { info, kept }: &Shown, out: &mut Output) -> Result<()> {
    let bytes = |blocks: u64| human_size(blocks.saturating_mul(info.block_size.into()));
    let used = info.available_blocks.saturating_sub(info.free_blocks);
    out.text(format_args!("XFS version {}\n", info.version))?;
    out.text("label       ")?;
    out.name(if info.label.is_empty() { b"(none)" } else { &info.label })?;
    out.text(format_args!("\nuuid        {}\n", info.uuid))?;
    out.text(format_args!(
        "size        {} ({} blocks of {} bytes)\n",
        bytes(info.blocks),
        info.blocks,
        info.block_size
    ))?;
    out.text(format_args!("used        {} ({used} blocks)\n", bytes(used)))?;
    out.text(format_args!("free        {} ({} blocks)", bytes(info.free_blocks), info.free_blocks))?;
    if let Some(kept) = kept.map(|kept| kept.min(info.free_blocks)) {
        out.text(format_args!(", {} of it kept for metadata to grow", bytes(kept)))?;
    }
    out.text("\n")?;
    out.text(format_args!(
        "inodes      {} allocated, {} of them free, {} bytes each; root is {}\n",
        info.inodes, info.free_inodes, info.inode_size, info.root_ino
    ))?;
    out.text(format_args!("groups      {} of {} blocks\n", info.ag_count, info.ag_blocks))?;
    out.text(format_args!(
        "log         {} ({} blocks), {}\n",
        bytes(info.log_blocks.into()),
        info.log_blocks,
        if info.log_clean { "clean" } else { "dirty" }
    ))?;
    out.text(format_args!("sector      {} bytes\n", info.sector_size))?;
    out.text(format_args!("directory   {} bytes a block\n", info.dir_block_size))?;
    let Kernels { read, read_because, written, written_because, build_options, .. } = &info.kernels;
    let (read, written) = (since(read.as_ref(), read_because), since(written.as_ref(), written_because));
    let built = if build_options.is_empty() || info.kernels.read.is_none() {
        String::new()
    } else {
        format!("; recent ones if built with {}", build_options.join(", "))
    };
    out.text(format_args!("kernels     mounted {read}, for writing {written}{built}\n"))?;
    if let Some(quota) = &info.quota {
        let counts = if quota.counted.is_empty() { "the next kernel counts anew" } else { COUNTED };
        out.text(format_args!(
            "quota       {}: limits are not enforced by uxfs; {counts}\n",
            quota.kinds.join(", ")
        ))?;
    }
    out.text(format_args!("features    {}\n", info.features.join(" ")))?;
    for missing in info.feature_table.iter().filter_map(missing) {
        out.text(format_args!("            {missing}\n"))?;
    }
    if !info.read_only_because.is_empty() {
        out.text(format_args!("read-only   because of {}\n", info.read_only_because.join(", ")))?;
    }
    Ok(())
}
