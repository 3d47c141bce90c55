//! A reader that lets things gather.
//!
//! `lackey` writes each line of its trace by a call of its own. Whoever reads each as it comes has the two take turns at
//! every line, which costs more than all else.

use std::io::Read;
use std::time::Duration;

/// Reads that brought less than this are followed by a rest.
const FEW: usize = 32 << 10;
/// A rest, in which less is written than a pipe holds.
const REST: Duration = Duration::from_millis(1);

/// Rests after a read that brought little.
pub(super) struct Patient<R>(pub(super) R);

impl<R: Read> Read for Patient<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buf)?;
        if (1..FEW.min(buf.len())).contains(&count) {
            std::thread::sleep(REST);
        }
        Ok(count)
    }
}
