//! A whole image: a small real volume as template, the input as changes of its metadata; checked, opened and walked.
//!
//! Templates are what `fuzz/seed` put into `fuzz/templates/`.

use blockdev::{BlockDevice, MemoryOptions};
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use witness::damage::layout::{Target, targets};
use witness::damage::mutate::{apply, current};
use witness::damage::overlay::Overlay;
use witness::damage::walk::{Limits, walk};
use xfs::check::{CheckOptions, check};
use xfs_format::checksum;

/// Most changes of one image.
const CHANGES_MAX: usize = 64;

struct Template {
    device: Arc<dyn BlockDevice>,
    targets: Vec<Target>,
}

fn templates() -> &'static [Template] {
    static TEMPLATES: OnceLock<Vec<Template>> = OnceLock::new();
    TEMPLATES.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
        let entries = fs::read_dir(&dir).expect("fuzz/seed makes the templates");
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        paths.iter().map(|path| load(path)).collect()
    })
}

fn load(path: &Path) -> Template {
    let device = Arc::new(MemoryOptions::new().copy_of(path).expect("the template can be read"));
    let len = File::open(path).and_then(|file| file.metadata()).expect("the template is there").len();
    let whole = 0..usize::try_from(len).expect("templates are small");
    let targets = targets(&*device, std::slice::from_ref(&whole)).expect("the template can be read");
    Template { device, targets }
}

/// First byte: which template (low bits), and whether checksums are put right (bit 7). Then changes, each: number of
/// the structure (2 bytes), place in it (2 bytes), count, and as many bytes.
pub fn run(data: &[u8]) {
    let Some((&first, mut rest)) = data.split_first() else { return };
    let templates = templates();
    let Some(template) = templates.get(usize::from(first & 0x7f) % templates.len().max(1)) else { return };
    let mut device = Overlay::new(Arc::clone(&template.device));
    let mut changed = Vec::new();
    for _ in 0..CHANGES_MAX {
        let Some((&[a, b, c, d, count], bytes)) = rest.split_first_chunk::<5>() else { break };
        let (new, behind) = bytes.split_at(bytes.len().min(usize::from(count % 32) + 1));
        rest = behind;
        let index = usize::from(u16::from_le_bytes([a, b])) % template.targets.len().max(1);
        let Some(target) = template.targets.get(index) else { break };
        let mut structure = current(&device, *target);
        let at = usize::from(u16::from_le_bytes([c, d])) % structure.len().max(1);
        for (to, from) in structure.iter_mut().skip(at).zip(new) {
            *to = *from;
        }
        apply(target.at, &structure, &mut device);
        changed.push(*target);
    }
    if first & 0x80 != 0 {
        for target in changed {
            let mut structure = current(&device, target);
            if target.crc.is_some_and(|crc| checksum::store(&mut structure, crc)) {
                apply(target.at, &structure, &mut device);
            }
        }
    }
    let device = Arc::new(device);
    let _ = check(Arc::clone(&device) as _, &CheckOptions::default());
    walk(device, &Limits::QUICK);
}
