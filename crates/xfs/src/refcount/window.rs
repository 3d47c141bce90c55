//! The records around a run, and replacing them.

use super::CountStore;
use super::record::{self, Counted, Domain};
use crate::alloc::AgExtent;
use crate::btree::edit::BtreeCursor;
use crate::error::Result;
use std::cmp::Ordering;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::records::RefcountRecord;

/// Walks through the records of one domain.
struct Walk<'e, S: CountStore> {
    editor: &'e mut BtreeCursor<S>,
    domain: Domain,
    /// The first record of the walk, until it is returned.
    first: Option<RefcountRecord>,
    end: u64,
}

impl<'e, S: CountStore> Walk<'e, S> {
    /// Begins with the last record that begins before `start`, otherwise with the next one.
    fn before(editor: &'e mut BtreeCursor<S>, domain: Domain, start: u32) -> Result<Self> {
        let before = editor.seek_le(domain.rank(start).saturating_sub(1))?;
        let first = match before {
            Some(record) if record::read(editor, &record)?.0 == domain => Some(record),
            _ => editor.next()?,
        };
        Ok(Self { editor, domain, first, end: 0 })
    }

    fn next(&mut self) -> Result<Option<Counted>> {
        let found = match self.first.take() {
            Some(first) => Some(first),
            None => self.editor.next()?,
        };
        let Some(found) = found else { return Ok(None) };
        let (domain, counted) = record::read(self.editor, &found)?;
        if domain != self.domain {
            return Ok(None);
        }
        let start = u64::from(counted.run.start.0);
        if start < self.end {
            let problem = FormatError::mismatch(Refcountbt::NAME, "start of an extent", start, self.end);
            return Err(self.editor.damage(0, problem));
        }
        self.end = counted.run.end();
        Ok(Some(counted))
    }
}

/// The first `limit` records that intersect or touch `run`.
pub(super) fn touching<S: CountStore>(
    editor: &mut BtreeCursor<S>,
    domain: Domain,
    run: AgExtent,
    limit: u32,
) -> Result<Vec<Counted>> {
    let mut found = Vec::new();
    let mut walk = Walk::before(editor, domain, run.start.0)?;
    while (found.len() as u64) < u64::from(limit) {
        match walk.next()? {
            Some(counted) if counted.run.end() < u64::from(run.start.0) => {}
            Some(counted) if u64::from(counted.run.start.0) <= run.end() => found.push(counted),
            _ => break,
        }
    }
    Ok(found)
}

/// The first blocks of `run` that one record of this domain has.
pub(super) fn first_in<S: CountStore>(
    editor: &mut BtreeCursor<S>,
    domain: Domain,
    run: AgExtent,
) -> Result<Option<AgExtent>> {
    let mut walk = Walk::before(editor, domain, run.start.0)?;
    while let Some(counted) = walk.next()? {
        if u64::from(counted.run.start.0) >= run.end() {
            break;
        }
        if let Some(common) = counted.run.common(run) {
            return Ok(Some(common));
        }
    }
    Ok(None)
}

/// How `run` continues after its part `found`, in adjacent records.
pub(super) fn whole<S: CountStore>(
    editor: &mut BtreeCursor<S>,
    domain: Domain,
    run: AgExtent,
    found: AgExtent,
) -> Result<AgExtent> {
    let mut end = found.end();
    let mut walk = Walk::before(editor, domain, found.start.0)?;
    while end < run.end()
        && let Some(counted) = walk.next()?
        && u64::from(counted.run.start.0) <= end
    {
        end = end.max(counted.run.end());
    }
    Ok(AgExtent::between(found.start.0.into(), end.min(run.end())).unwrap_or(found))
}

/// One change of a tree.
#[derive(Clone, Copy, Debug)]
enum RecordChange {
    Insert(Counted),
    Delete(Counted),
    /// The first becomes the second, between the same neighbours.
    Update(Counted, Counted),
}

/// Replaces `old` by `new`, all of them neighbours. Returns the number of changes: at most the number of blocks at
/// which a record begins before or after.
pub(super) fn replace<S: CountStore>(
    editor: &mut BtreeCursor<S>,
    domain: Domain,
    old: &[Counted],
    new: &[Counted],
) -> Result<u32> {
    let changes = changes(old, new);
    for change in &changes {
        match *change {
            RecordChange::Insert(new) => {
                editor.seek_le(domain.rank(new.run.start.0))?;
                editor.insert(new.record(domain))?;
            }
            RecordChange::Delete(old) => {
                seek(editor, domain, old)?;
                editor.delete()?;
            }
            RecordChange::Update(old, new) => {
                seek(editor, domain, old)?;
                editor.update(new.record(domain))?;
            }
        }
    }
    Ok(changes.len() as u32)
}

/// Moves to a record that was read before.
fn seek<S: CountStore>(editor: &mut BtreeCursor<S>, domain: Domain, wanted: Counted) -> Result<()> {
    if editor.seek_eq(domain.rank(wanted.run.start.0))?.is_some() {
        return Ok(());
    }
    let start = wanted.run.start.0.into();
    Err(editor.damage(0, FormatError::value(Refcountbt::NAME, "record that was there", start)))
}

/// The changes that turn `old` into `new`, so that the order of records holds after each step.
fn changes(old: &[Counted], new: &[Counted]) -> Vec<RecordChange> {
    let mut changes = Vec::new();
    let (mut olds, mut news) = (old.iter().copied().peekable(), new.iter().copied().peekable());
    loop {
        let (was, is) = (olds.peek().copied(), news.peek().copied());
        let order = match (was, is) {
            (None, None) => return changes,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.run.start.cmp(&is.run.start),
        };
        if order.is_le() {
            olds.next();
        }
        if order.is_ge() {
            news.next();
        }
        match (order, was, is) {
            (Ordering::Equal, Some(was), Some(is)) => {
                if was != is {
                    changes.push(RecordChange::Update(was, is));
                }
            }
            // A record that no longer begins here may become the next one, if none begins in between.
            (Ordering::Less, Some(was), is) => match is {
                Some(is) if olds.peek().is_none_or(|next| is.run.start < next.run.start) => {
                    news.next();
                    changes.push(RecordChange::Update(was, is));
                }
                _ => changes.push(RecordChange::Delete(was)),
            },
            (Ordering::Greater, was, Some(is)) => match was {
                Some(was) if news.peek().is_none_or(|next| was.run.start < next.run.start) => {
                    olds.next();
                    changes.push(RecordChange::Update(was, is));
                }
                _ => changes.push(RecordChange::Insert(is)),
            },
            _ => return changes,
        }
    }
}
