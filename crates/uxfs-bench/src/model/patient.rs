//! A reader that waits for larger pieces.
//!
//! `lackey` writes each line of its trace by a call of its own. Reading each line as it arrives makes the two processes
//! take turns at every line, which costs more than everything else.

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
