//! Reading ahead: a thread reads the next data while the last are being processed.
//!
//! Invariants: data arrive in order, up to the end or the first error; at most [`CHUNKS`] pieces wait, so that a fast
//! source takes little memory; the thread is never joined, since a source may block it for ever.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Bytes to read at once.
const CHUNK: usize = 1 << 20;
/// The most pieces that wait.
const CHUNKS: usize = 4;

/// Starts a thread that reads ahead, if possible.
pub fn ahead(source: impl Read + Send + 'static) -> Box<dyn Read> {
    let (full, chunks) = sync_channel(CHUNKS);
    let (spent, empty) = sync_channel(CHUNKS + 2);
    // The source moves to the thread once it runs. Otherwise it stays here.
    let (give, take) = sync_channel(1);
    let reads = move || {
        if let Ok(source) = take.recv() {
            read_all(source, &full, &empty);
        }
    };
    let Ok(_runs) = thread::Builder::new().name("read ahead".to_owned()).spawn(reads) else {
        return Box::new(io::BufReader::with_capacity(CHUNK, source));
    };
    match give.send(source) {
        Ok(()) => Box::new(Ahead { chunks, spent, chunk: Vec::new(), at: 0, is_over: false }),
        Err(back) => Box::new(io::BufReader::with_capacity(CHUNK, back.0)),
    }
}

/// Sends all data; an empty piece is the end.
fn read_all(mut source: impl Read, full: &SyncSender<io::Result<Vec<u8>>>, empty: &Receiver<Vec<u8>>) {
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.resize(CHUNK, 0);
        let read = loop {
            match source.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let is_last = !matches!(read, Ok(1..));
        let piece = read.map(|len| {
            chunk.truncate(len);
            chunk
        });
        if full.send(piece).is_err() || is_last {
            return;
        }
    }
}

/// The data that a thread has read.
struct Ahead {
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// Pieces whose memory is used again.
    spent: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl Read for Ahead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len() && !self.is_over && !buf.is_empty() {
            let next =
                self.chunks.recv().map_err(|_| io::Error::other("the thread that reads it has ended"))?;
            let next = next.inspect_err(|_| self.is_over = true)?;
            self.is_over = next.is_empty();
            self.at = 0;
            let _ = self.spent.try_send(std::mem::replace(&mut self.chunk, next));
        }
        let len = buf.len().min(self.chunk.len() - self.at);
        buf[..len].copy_from_slice(&self.chunk[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives bytes that depend on their offset, in pieces of any size, and then an error or the end.
    struct Source {
        at: usize,
        end: usize,
        fails: bool,
    }

    fn byte(at: usize) -> u8 {
        (at * 7 + at / 251) as u8
    }

    impl Read for Source {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.at == self.end {
                return if self.fails { Err(io::Error::other("torn")) } else { Ok(0) };
            }
            let len = buf.len().min(self.end - self.at).min(1 + self.at * 31 % 300_000);
            for (nth, byte_of) in buf[..len].iter_mut().enumerate() {
                *byte_of = byte(self.at + nth);
            }
            self.at += len;
            Ok(len)
        }
    }

    #[test]
    fn all_comes_in_order_and_then_the_end_or_the_error() {
        for (end, fails) in [(0, false), (0, true), (5_000_000, false), (5_000_000, true)] {
            let mut from = ahead(Source { at: 0, end, fails });
            let mut found = Vec::new();
            let read = from.read_to_end(&mut found);
            assert_eq!(read.is_err(), fails);
            assert!(found.len() == end && found.iter().enumerate().all(|(at, found)| *found == byte(at)));
            if !fails {
                assert_eq!(from.read(&mut [0; 9]).unwrap(), 0, "the end stays the end");
            }
        }
    }

    /// A panic of the thread is not an end: half an archive would pass for a whole one.
    #[test]
    fn a_source_that_panics_is_an_error() {
        struct Panics(bool);
        impl Read for Panics {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                assert!(!std::mem::replace(&mut self.0, true), "on purpose");
                buf[0] = 1;
                Ok(1)
            }
        }
        let mut found = Vec::new();
        ahead(Panics(false)).read_to_end(&mut found).unwrap_err();
        assert_eq!(found, [1]);
    }

    /// Dropping it does not wait for the source.
    #[test]
    fn a_source_without_end_is_let_go_of() {
        let mut from = ahead(io::repeat(3));
        let mut found = [0; 100];
        from.read_exact(&mut found).unwrap();
        assert_eq!(found, [3; 100]);
    }
}
