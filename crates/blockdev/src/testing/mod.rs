//! Wrappers that tests put around a device: they count, delay, hold back, fail, tear, record or forbid what
//! passes through, or say that it lacks something.

pub(crate) mod counter;
pub(crate) mod delay;
pub(crate) mod fault;
pub(crate) mod hold;
pub(crate) mod means;
pub(crate) mod power_cuts;
pub(crate) mod recorder;
pub(crate) mod rewind;
pub(crate) mod seal;
