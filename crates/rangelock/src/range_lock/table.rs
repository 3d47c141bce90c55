//! A table of buckets, one of those that a lock has had.
//!
//! Invariants:
//! - a lock uses its last table; those before it are kept until the lock is dropped, since threads may still look at
//!   them. All of their buckets say that they have moved;
//! - each table has a generation, one more than the one before it. Tokens name it beside their bucket.

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::ptr;
use std::sync::Arc;

use crate::claim::Claim;
use crate::spin::Spin;

use super::bucket::{Bucket, Moved};
use super::gate::{Gate, Mark};
use super::geometry::{Buckets, Geometry};
use super::slots::Slots;
use super::visible_readers::VisibleReaders;

/// A table: its buckets right behind what there is to know of them, so that finding a bucket takes one address.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    head: Head,
    buckets: [Bucket],
}

#[derive(Debug)]
pub(super) struct Head {
    pub(super) geometry: Geometry,
    pub(super) generation: Generation,
    pub(super) mark: Mark,
    pub(super) gate: Arc<Spin<Gate>>,
    /// The table before this one, or null.
    previous: *mut Head,
    /// How many buckets there are.
    count: usize,
}

/// Which of a lock's tables. The two lowest bits are zero.
pub(super) type Generation = u32;

const NEXT_GENERATION: Generation = 4;

// SAFETY: the table before this one is as shareable as this one, and is only freed by `free_all`.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl std::ops::Deref for Table {
    type Target = Head;

    #[inline(always)]
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Table {
    pub(super) fn first(geometry: Geometry) -> Box<Self> {
        let gate = Arc::new(Spin::new(Gate::new(Mark::new(geometry, 0))));
        Self::new(geometry, 0, gate)
    }

    /// An empty table to move to from this one.
    pub(super) fn next(&self, geometry: Geometry) -> Box<Self> {
        let generation = self.generation + NEXT_GENERATION;
        Self::new(geometry, generation, self.gate.clone())
    }

    /// Notes the table before this one, which is freed with it from then on.
    pub(super) fn follow(&mut self, previous: *mut Head) {
        self.head.previous = previous;
    }

    fn new(geometry: Geometry, generation: Generation, gate: Arc<Spin<Gate>>) -> Box<Self> {
        let count = geometry.buckets();
        let mark = Mark::new(geometry, generation);
        let head = Head { geometry, generation, mark, gate, previous: ptr::null_mut(), count };
        let buckets = Layout::array::<Bucket>(count).expect("65536 buckets at most");
        let (layout, offset) = Layout::new::<Head>().extend(buckets).expect("65536 buckets at most");
        let layout = layout.pad_to_align();
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the layout begins with a head and has `count` buckets from `offset` on.
        unsafe {
            start.cast::<Head>().write(head);
            let first = start.add(offset).cast::<Bucket>();
            (0..count).for_each(|at| first.add(at).write(Bucket::new()));
        }
        // SAFETY: a whole table, allocated with its layout: `repr(C)` puts fields where `Layout::extend` does.
        unsafe { Box::from_raw(Self::of_head(start.cast())) }
    }

    /// The address of the table that begins with this head, to be kept in one word.
    pub(super) fn into_head(table: Box<Self>) -> *mut Head {
        Box::into_raw(table).cast()
    }

    /// The table that begins with a head.
    ///
    /// # Safety
    /// There is a head.
    #[inline(always)]
    unsafe fn of_head(head: *mut Head) -> *mut Self {
        // SAFETY: the caller says so.
        let count = unsafe { (*head).count };
        // The length is that of the last field.
        ptr::slice_from_raw_parts_mut(head.cast::<Bucket>(), count) as *mut Self
    }

    /// The table that begins with a head, if there is one.
    ///
    /// # Safety
    /// The head is null or one that `into_head` returned, and is not freed while the reference lives.
    #[inline(always)]
    pub(super) unsafe fn at<'a>(head: *mut Head) -> Option<&'a Self> {
        // SAFETY: the caller says so.
        (!head.is_null()).then(|| unsafe { &*Self::of_head(head) })
    }

    #[inline(always)]
    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The bucket of a number.
    ///
    /// # Safety
    /// A geometry equal to this table's returned the number.
    #[inline(always)]
    pub(super) unsafe fn bucket_of_geometry(&self, at: usize) -> &Bucket {
        debug_assert!(at < self.count);
        // SAFETY: a geometry cuts numbers to its count of buckets.
        unsafe { self.buckets.get_unchecked(at) }
    }

    /// The table of a generation, of this one and those before it.
    pub(super) fn of_generation(&self, generation: Generation) -> Option<&Table> {
        let mut table = self;
        while table.generation != generation {
            // SAFETY: a table lives as long as the one after it: only `free_all` frees it.
            table = unsafe { Self::at(table.previous) }?;
        }
        Some(table)
    }

    /// Frees a table and those before it.
    ///
    /// # Safety
    /// The head is null or one that `into_head` returned, and nobody looks at its table any more, nor at those before.
    pub(super) unsafe fn free_all(mut last: *mut Head) {
        while !last.is_null() {
            // SAFETY: the caller says so of the first, and `previous` holds such heads.
            let mut table = unsafe { Box::from_raw(Self::of_head(last)) };
            last = table.previous;
            table.forget_readers();
        }
    }

    /// Buckets made later at the same addresses do not inherit what tokens that were lost still held.
    fn forget_readers(&mut self) {
        if self.buckets.iter_mut().any(Bucket::was_biased)
            && let (Some(first), Some(last)) = (self.buckets.first(), self.buckets.last())
        {
            VisibleReaders::of_process().forget(first.id()..=last.id());
        }
    }

    /// The buckets of claims that are all narrow; none if one is wide.
    #[inline]
    pub(super) fn narrow_all<const N: usize>(&self, claims: &[Claim; N]) -> Option<[Buckets; N]> {
        let mut all = [Buckets { low: 0, high: 0 }; N];
        for (buckets, claim) in all.iter_mut().zip(claims) {
            *buckets = self.geometry.narrow(claim)?;
        }
        Some(all)
    }

    /// Locks all these buckets, each once, in ascending order. They are put where the caller has made room, as moving
    /// them right after they were written makes a processor wait.
    #[inline]
    pub(super) fn lock_all<'a, const N: usize>(
        &'a self,
        buckets: [Buckets; N],
        room: &mut LockedBuckets<'a, N>,
    ) -> Result<(), Moved> {
        let mut order = buckets.map(|buckets| [buckets.low, buckets.high]);
        if N > 1 {
            order.as_flattened_mut().sort_unstable();
        }
        let mut before = None;
        for (slot, at) in room.0.as_flattened_mut().iter_mut().zip(order.as_flattened()) {
            if before.replace(*at) != Some(*at) {
                *slot = Some((*at, self.buckets[*at as usize].lock()?));
            }
        }
        Ok(())
    }
}

/// Buckets that are locked together.
pub(super) struct LockedBuckets<'a, const N: usize>([[Option<(u32, Slots<'a>)>; 2]; N]);

impl<'a, const N: usize> LockedBuckets<'a, N> {
    #[inline(always)]
    pub(super) fn none() -> Self {
        LockedBuckets([const { [const { None }; 2] }; N])
    }

    /// Each with its number.
    #[inline]
    pub(super) fn each(&mut self) -> impl Iterator<Item = (u32, &mut Slots<'a>)> {
        self.0.as_flattened_mut().iter_mut().flatten().map(|(at, slots)| (*at, slots))
    }
}
