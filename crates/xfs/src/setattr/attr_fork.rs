//! Makes room for attributes in an inode: what fills it moves into blocks.

use crate::bmap::{self, DATA_BYTES_USUAL, TransFork};
use crate::dir::edit as dir_edit;
use crate::error::Result;
use crate::inode::ForkKind;
use crate::symlink;
use crate::trans::Trans;
use xfs_format::inode::ForkFormat;
use xfs_format::types::InodeNumber;

/// The attribute fork of a joined inode. It is made if there is none. The transaction has reserved
/// [`attr_fork`](crate::trans::reservation::ReservationBuilder::attr_fork).
pub(crate) fn attr_fork<'t, 'v>(trans: &'t mut Trans<'v>, ino: InodeNumber) -> Result<TransFork<'t, 'v>> {
    if !TransFork::has_room_for_attrs(trans, ino) {
        move_content_out(trans, ino)?;
    }
    TransFork::attr(trans, ino)
}

fn move_content_out(trans: &mut Trans<'_>, ino: InodeNumber) -> Result<()> {
    let inode = trans.inode(ino);
    let (local, is_dir) = (inode.fork_format(ForkKind::Data) == Some(ForkFormat::Local), inode.is_dir());
    match (local, is_dir) {
        (true, true) => dir_edit::move_out(&mut TransFork::new(trans, ino, ForkKind::Data)),
        (true, false) => symlink::move_out(&mut TransFork::new(trans, ino, ForkKind::Data)),
        (false, _) => bmap::fit_map(trans, ino, DATA_BYTES_USUAL),
    }
}
