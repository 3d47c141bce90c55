//! The tree itself: a treap of claims, in an arena, each node with the greatest end below it.
//!
//! Invariants:
//! - in order of `(start, node id)`; a node's priority is not below its children's;
//! - `max_end` of a node is the greatest `end` of the subtree under it, itself included;
//! - `holds`: a node with `blockers == 0` is held and has no waiter left;
//! - freed nodes are reused, so that the steady state allocates nothing;
//! - recursion goes as deep as the treap, whose expected depth is logarithmic.

use std::sync::Arc;

use crate::claim::Claim;
use crate::waiter::Waiter;

/// The place of a node in the arena.
pub(super) type NodeId = u32;

const NONE: NodeId = NodeId::MAX;

#[derive(Debug)]
struct Node {
    claim: Claim,
    max_end: u64,
    priority: u32,
    left: NodeId,
    right: NodeId,
    blockers: usize,
    waiter: Option<Arc<Waiter>>,
    live: bool,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    root: NodeId,
    random: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Tree { nodes: Vec::new(), free: Vec::new(), root: NONE, random: 0x9e37_79b9 }
    }
}

impl Tree {
    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    fn key(&self, id: NodeId) -> (u64, NodeId) {
        (self.node(id).claim.start, id)
    }

    /// How many nodes conflict with `claim`.
    pub(super) fn count_conflicts(&self, claim: &Claim) -> usize {
        self.count_below(self.root, claim)
    }

    fn count_below(&self, id: NodeId, claim: &Claim) -> usize {
        if id == NONE {
            return 0;
        }
        let node = self.node(id);
        if node.max_end <= claim.start {
            return 0;
        }
        let mut count = self.count_below(node.left, claim);
        if node.claim.start < claim.end {
            count += usize::from(node.claim.conflicts(claim));
            count += self.count_below(node.right, claim);
        }
        count
    }

    /// Takes one blocker off every node that conflicts with `claim`; hands over those now free to go,
    /// granted but not woken.
    pub(super) fn unblock(&mut self, claim: &Claim, mut granted: impl FnMut(Arc<Waiter>)) {
        self.unblock_below(self.root, claim, &mut granted);
    }

    fn unblock_below(&mut self, id: NodeId, claim: &Claim, granted: &mut impl FnMut(Arc<Waiter>)) {
        if id == NONE || self.node(id).max_end <= claim.start {
            return;
        }
        let (left, right) = (self.node(id).left, self.node(id).right);
        self.unblock_below(left, claim, granted);
        let node = self.node_mut(id);
        if node.claim.start >= claim.end {
            return;
        }
        if node.claim.conflicts(claim) {
            debug_assert!(node.blockers > 0, "a holder conflicts with a holder");
            node.blockers -= 1;
            if node.blockers == 0
                && let Some(waiter) = node.waiter.take()
                && waiter.left_line()
            {
                granted(waiter);
            }
        }
        self.unblock_below(right, claim, granted);
    }

    pub(super) fn insert(&mut self, claim: Claim, blockers: usize, waiter: Option<Arc<Waiter>>) -> NodeId {
        let priority = self.next_random();
        let node = Node {
            claim,
            max_end: claim.end,
            priority,
            left: NONE,
            right: NONE,
            blockers,
            waiter,
            live: true,
        };
        let id = match self.free.pop() {
            Some(id) => {
                *self.node_mut(id) = node;
                id
            }
            None => {
                let id = NodeId::try_from(self.nodes.len()).expect("fewer ranges than 2^32 at once");
                self.nodes.push(node);
                id
            }
        };
        self.root = self.insert_below(self.root, id);
        id
    }

    /// Puts node `id` into the tree under `top` and returns its new top.
    fn insert_below(&mut self, top: NodeId, id: NodeId) -> NodeId {
        if top == NONE {
            return id;
        }
        if self.node(top).priority < self.node(id).priority {
            let (left, right) = self.split(top, self.key(id));
            let node = self.node_mut(id);
            node.left = left;
            node.right = right;
            self.update(id);
            return id;
        }
        if self.key(id) < self.key(top) {
            let child = self.insert_below(self.node(top).left, id);
            self.node_mut(top).left = child;
        } else {
            let child = self.insert_below(self.node(top).right, id);
            self.node_mut(top).right = child;
        }
        self.update(top);
        top
    }

    /// Splits the tree under `top` into those below `key` and those above.
    fn split(&mut self, top: NodeId, key: (u64, NodeId)) -> (NodeId, NodeId) {
        if top == NONE {
            return (NONE, NONE);
        }
        if self.key(top) < key {
            let (left, right) = self.split(self.node(top).right, key);
            self.node_mut(top).right = left;
            self.update(top);
            (top, right)
        } else {
            let (left, right) = self.split(self.node(top).left, key);
            self.node_mut(top).left = right;
            self.update(top);
            (left, top)
        }
    }

    /// Takes a node out; false if it is not a held node with that claim.
    pub(super) fn remove(&mut self, id: NodeId, claim: &Claim) -> bool {
        let held = self
            .nodes
            .get(id as usize)
            .is_some_and(|node| node.live && node.blockers == 0 && node.claim == *claim);
        if held {
            self.root = self.remove_below(self.root, id);
            self.node_mut(id).live = false;
            self.free.push(id);
        }
        held
    }

    fn remove_below(&mut self, top: NodeId, id: NodeId) -> NodeId {
        debug_assert_ne!(top, NONE, "a live node is in the tree");
        if top == id {
            let (left, right) = (self.node(id).left, self.node(id).right);
            return self.merge(left, right);
        }
        if self.key(id) < self.key(top) {
            let child = self.remove_below(self.node(top).left, id);
            self.node_mut(top).left = child;
        } else {
            let child = self.remove_below(self.node(top).right, id);
            self.node_mut(top).right = child;
        }
        self.update(top);
        top
    }

    fn merge(&mut self, left: NodeId, right: NodeId) -> NodeId {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if self.node(left).priority >= self.node(right).priority {
            let child = self.merge(self.node(left).right, right);
            self.node_mut(left).right = child;
            self.update(left);
            left
        } else {
            let child = self.merge(left, self.node(right).left);
            self.node_mut(right).left = child;
            self.update(right);
            right
        }
    }

    fn update(&mut self, id: NodeId) {
        let node = self.node(id);
        let mut max_end = node.claim.end;
        for child in [node.left, node.right] {
            if child != NONE {
                max_end = max_end.max(self.node(child).max_end);
            }
        }
        self.node_mut(id).max_end = max_end;
    }

    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mode;

    fn check(tree: &Tree, id: NodeId) -> (usize, u64) {
        if id == NONE {
            return (0, 0);
        }
        let node = tree.node(id);
        let (left, left_end) = check(tree, node.left);
        let (right, right_end) = check(tree, node.right);
        for child in [node.left, node.right] {
            assert!(child == NONE || tree.node(child).priority <= node.priority);
        }
        assert!(node.left == NONE || tree.key(node.left) < tree.key(id));
        assert!(node.right == NONE || tree.key(node.right) > tree.key(id));
        let max_end = node.claim.end.max(left_end).max(right_end);
        assert_eq!(node.max_end, max_end);
        (left + right + 1, max_end)
    }

    #[test]
    fn random_insertions_and_removals_keep_the_order_and_the_ends() {
        let seed: u64 = 0x5eed_0001;
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut tree = Tree::default();
        let mut held: Vec<(NodeId, Claim)> = Vec::new();
        for step in 0..4000 {
            if random(3) > 0 || held.is_empty() {
                let start = random(1000);
                let claim = Claim::new(start..start + 1 + random(50), Mode::Shared);
                let probe = Claim { mode: Mode::Exclusive, ..claim };
                let expected = held.iter().filter(|(_, other)| other.conflicts(&probe)).count();
                assert_eq!(tree.count_conflicts(&probe), expected, "seed {seed:#x} step {step}");
                held.push((tree.insert(claim, 0, None), claim));
            } else {
                let (id, claim) = held.swap_remove(random(held.len() as u64) as usize);
                assert!(tree.remove(id, &claim));
                assert!(!tree.remove(id, &claim), "removed twice");
            }
            assert_eq!(check(&tree, tree.root).0, held.len(), "seed {seed:#x} step {step}");
        }
    }
}
