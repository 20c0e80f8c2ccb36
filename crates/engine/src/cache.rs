//! Which sequence holds which cells of the KV cache: a prefix tree over token ids, across running and finished
//! sequences.
//!
//! A cell of llama.cpp's unified cache holds one token at one position and the set of sequences that see it. It is
//! freed when the last of them releases it. So a prefix is shared without copying, by adding a sequence to its cells.
//! The tree decides what is shared and what is evicted; what the context has to do comes out as `CellOp`s. Nothing here
//! knows llama.cpp.
//!
//! The response time reveals whether the beginning of a prompt was cached. So prefixes are shared only within a scope:
//! everyone's requests, a person's or a key's.
//!
//! A running sequence consists of a path and a tail. The path is its prompt without the last token; it lies in the tree
//! and can be shared even before it is computed. The tail is the prompt's last token, which every request has to
//! compute to get its logits, and the generated tokens. When the sequence ends, its tail is added to the tree.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

/// A token's id in the model's vocabulary.
pub(crate) type Token = i32;

/// A sequence id of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sequence(pub(crate) u16);

/// An operation on the context's cells. The order matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CellOp {
    /// Adds `to` to the cells that `from` sees at these positions.
    Share { from: Sequence, to: Sequence, positions: Range<usize> },
    /// Removes the sequence from its cells at these positions.
    Release { sequence: Sequence, positions: Range<usize> },
}

/// Greater than every position.
const END: usize = usize::MAX;

type NodeId = usize;
const ROOT: NodeId = 0;

/// Requests with the same scope share prefixes. Opaque.
pub(crate) type Scope = Arc<str>;

/// A run of tokens that is common to all paths through it.
#[derive(Default)]
struct Node {
    parent: NodeId,
    scope: Scope,
    /// The position of its first token.
    start: usize,
    tokens: Vec<Token>,
    /// How many of the tokens are in the KV cache.
    computed: usize,
    children: Vec<NodeId>,
    /// Running sequences whose prompt contains this node. All see what is computed; the first one computes the rest.
    running: Vec<Sequence>,
    /// The finished sequence that holds the cells of an idle leaf.
    holder: Option<Sequence>,
    last_used: u64,
}

impl Node {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    fn is_complete(&self) -> bool {
        self.computed == self.tokens.len()
    }
}

struct RunningSequence {
    scope: Scope,
    /// The last node of its path.
    tip: NodeId,
    tail: Vec<Token>,
    tail_computed: usize,
    /// Cells reserved for the tail.
    reserved: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) sequence: Sequence,
    /// Prompt tokens that it need not compute itself.
    pub(crate) shared: usize,
    /// How many of those no running sequence was using.
    pub(crate) revived: usize,
}

pub(crate) struct PrefixCache {
    capacity: usize,
    /// Cells that are used or reserved: one for each token of the tree, and those reserved for tails.
    used: usize,
    nodes: Slab<Node>,
    running: HashMap<Sequence, RunningSequence>,
    free_sequences: Vec<Sequence>,
    /// In the caller's unit of time.
    clock: u64,
}

impl PrefixCache {
    pub(crate) fn new(capacity: usize, sequences: u16) -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node::default());
        Self {
            capacity,
            used: 0,
            nodes,
            running: HashMap::new(),
            free_sequences: (0..sequences).rev().map(Sequence).collect(),
            clock: 0,
        }
    }

    /// Cells that are used or reserved.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Cells that several running sequences see, each counted once.
    pub(crate) fn shared(&self) -> usize {
        self.nodes.iter().filter(|(_, node)| node.running.len() > 1).map(|(_, node)| node.computed).sum()
    }

    /// Cells that running sequences see, each counted once.
    pub(crate) fn visible(&self) -> usize {
        let paths = self.nodes.iter().filter(|(_, node)| !node.running.is_empty()).map(|(_, node)| node.tokens.len());
        paths.sum::<usize>() + self.running.values().map(|running| running.tail.len()).sum::<usize>()
    }

    /// Starts a sequence and reserves cells for its prompt and completion. `None` if there are not enough now.
    pub(crate) fn start(
        &mut self,
        scope: &Scope,
        prompt: &[Token],
        max_tokens: usize,
        ops: &mut Vec<CellOp>,
    ) -> Option<Started> {
        let (last, body) = prompt.split_last()?;
        let (node, shared) = self.longest_prefix(scope, body);
        let (new, reserved) = (body.len() - shared, 1 + max_tokens);
        if !self.free_cells(new + reserved, node, ops) {
            return None;
        }
        let idle = |at: &NodeId| self.nodes[*at].running.is_empty();
        let revived = self.path(node).iter().filter(|at| idle(at)).map(|at| self.nodes[*at].tokens.len()).sum();
        let sequence = self.join(node, ops)?;
        let tip = if new == 0 { node } else { self.insert(scope, node, &body[shared..], 0) };
        for at in self.path(tip) {
            self.nodes[at].running.push(sequence);
            self.nodes[at].last_used = self.clock;
        }
        self.used += new + reserved;
        let (scope, tail) = (scope.clone(), vec![*last]);
        self.running.insert(sequence, RunningSequence { scope, tip, tail, tail_computed: 0, reserved });
        Some(Started { sequence, shared, revived })
    }

    /// The position of the next token that a sequence has to compute, and at most `limit` tokens from there. Empty
    /// while another sequence is going to compute what this one needs.
    pub(crate) fn pending(&self, sequence: Sequence, limit: usize) -> (usize, Vec<Token>) {
        let Some(running) = self.running.get(&sequence) else { return (0, Vec::new()) };
        let mut found = Vec::new();
        let mut take = |tokens: &[Token]| {
            found.extend_from_slice(&tokens[..tokens.len().min(limit - found.len())]);
            found.len() < limit
        };
        let path = self.path(running.tip);
        let own = path.iter().map(|at| &self.nodes[*at]).filter(|node| !node.is_complete());
        let mut continues = true;
        for node in own {
            continues = continues && node.running.first() == Some(&sequence) && take(&node.tokens[node.computed..]);
        }
        if continues {
            take(&running.tail[running.tail_computed..]);
        }
        (self.position(running), found)
    }

    /// The number of a sequence's tokens, computed or not.
    pub(crate) fn length(&self, sequence: Sequence) -> usize {
        self.running.get(&sequence).map_or(0, |running| self.nodes[running.tip].end() + running.tail.len())
    }

    /// Records that the next `count` pending tokens of a sequence have been computed.
    pub(crate) fn computed(&mut self, sequence: Sequence, count: usize, ops: &mut Vec<CellOp>) {
        let Some(tip) = self.running.get(&sequence).map(|running| running.tip) else { return };
        let mut left = count;
        for at in self.path(tip) {
            let node = &mut self.nodes[at];
            let here = left.min(node.tokens.len() - node.computed);
            if here == 0 {
                continue;
            }
            let from = node.start + node.computed;
            node.computed += here;
            left -= here;
            let others = node.running.iter().filter(|other| **other != sequence);
            ops.extend(others.map(|other| CellOp::Share { from: sequence, to: *other, positions: from..from + here }));
        }
        if let Some(running) = self.running.get_mut(&sequence) {
            running.tail_computed += left;
            debug_assert!(running.tail_computed <= running.tail.len());
        }
    }

    /// Whether a sequence ends with this token at this position.
    pub(crate) fn ends_with(&self, sequence: Sequence, position: usize, token: Token) -> bool {
        let last = self.running.get(&sequence).and_then(|running| running.tail.last());
        last == Some(&token) && self.length(sequence) == position + 1
    }

    /// Records that all tokens of a sequence have been computed.
    pub(crate) fn computed_to_the_end(&mut self, sequence: Sequence) {
        if let Some(running) = self.running.get_mut(&sequence) {
            running.tail_computed = running.tail.len();
        }
    }

    /// Releases what was computed beyond a sequence's tokens.
    pub(crate) fn release_rest(&self, sequence: Sequence, ops: &mut Vec<CellOp>) {
        if let Some(running) = self.running.get(&sequence) {
            ops.push(CellOp::Release { sequence, positions: self.position(running)..END });
        }
    }

    /// Appends a generated token.
    pub(crate) fn push(&mut self, sequence: Sequence, token: Token) {
        if let Some(running) = self.running.get_mut(&sequence) {
            running.tail.push(token);
            debug_assert!(running.tail.len() <= running.reserved);
        }
    }

    /// Ends a sequence. What it computed stays for others until it is evicted.
    pub(crate) fn finish(&mut self, sequence: Sequence, ops: &mut Vec<CellOp>) {
        let Some(RunningSequence { scope, tip, tail, tail_computed, reserved }) = self.running.remove(&sequence) else {
            return;
        };
        self.used -= reserved;
        for at in self.path(tip) {
            self.nodes[at].running.retain(|other| *other != sequence);
            self.nodes[at].last_used = self.clock;
        }
        let end = if self.nodes[tip].is_complete() {
            self.graft((&scope, tip), &tail[..tail_computed], sequence, ops)
        } else {
            self.prune(tip)
        };
        self.settle(sequence, end, ops);
    }

    /// Advances the clock and evicts leaves that were last used more than `ttl` ago. Returns their number.
    pub(crate) fn age(&mut self, by: u64, ttl: u64, ops: &mut Vec<CellOp>) -> usize {
        self.clock += by;
        let mut evicted = 0;
        while let Some(leaf) = self.oldest_leaf(ROOT) {
            if self.nodes[leaf].last_used + ttl >= self.clock {
                break;
            }
            self.evict(leaf, ops);
            evicted += 1;
        }
        evicted
    }

    /// Finds the longest prefix in the tree. Splits a node if the prefix ends within it.
    fn longest_prefix(&mut self, scope: &Scope, tokens: &[Token]) -> (NodeId, usize) {
        let (mut node, mut matched) = (ROOT, 0);
        while let Some(child) = tokens.get(matched).and_then(|first| self.child(scope, node, *first)) {
            let common = common_prefix(&self.nodes[child].tokens, &tokens[matched..]);
            matched += common;
            if common < self.nodes[child].tokens.len() {
                return (self.split(child, common), matched);
            }
            node = child;
        }
        (node, matched)
    }

    /// Evicts idle leaves, the least recently used first, until there are enough free cells and a free sequence. Evicts
    /// nothing if that would not be enough, and nothing on the path to `kept`.
    fn free_cells(&mut self, cells: usize, kept: NodeId, ops: &mut Vec<CellOp>) -> bool {
        let path = self.path(kept);
        let idle = self.nodes.iter().filter(|(at, node)| node.running.is_empty() && !path.contains(at));
        let evictable: usize = idle.map(|(_, node)| node.tokens.len()).sum();
        if self.capacity - self.used + evictable < cells {
            return false;
        }
        while self.capacity - self.used < cells || (self.free_sequences.is_empty() && self.nodes[kept].holder.is_none())
        {
            let Some(leaf) = self.oldest_leaf(kept) else { return false };
            self.evict(leaf, ops);
        }
        true
    }

    /// Returns a sequence that sees everything that is computed up to the end of a node.
    fn join(&mut self, node: NodeId, ops: &mut Vec<CellOp>) -> Option<Sequence> {
        // Reuses the finished sequence that ends here.
        if let Some(holder) = self.nodes[node].holder.take() {
            return Some(holder);
        }
        let sequence = self.free_sequences.pop()?;
        let computed = self.computed_up_to(node);
        if computed > 0 {
            ops.push(CellOp::Share { from: self.holder_of(node)?, to: sequence, positions: 0..computed });
        }
        Some(sequence)
    }

    /// Adds a finished sequence's tail to the tree and returns the node where it ends now. Where another sequence holds
    /// cells with the same tokens, these replace its own.
    fn graft(
        &mut self,
        (scope, tip): (&Scope, NodeId),
        tail: &[Token],
        sequence: Sequence,
        ops: &mut Vec<CellOp>,
    ) -> NodeId {
        let (mut node, mut rest) = (tip, tail);
        while let Some(first) = rest.first() {
            let Some(child) = self.child(scope, node, *first) else {
                // From now on this sequence holds the cells of the former leaf.
                if let Some(holder) = self.nodes[node].holder.take() {
                    self.retire(holder, ops);
                }
                self.used += rest.len();
                return self.insert(scope, node, rest, rest.len());
            };
            let common = common_prefix(&self.nodes[child].tokens, rest);
            if common == rest.len() || !self.nodes[child].is_complete() {
                break; // the tree has all of it, or will have it soon
            }
            let Some(from) = self.holder_of(child) else { break };
            let positions = self.nodes[child].start..self.nodes[child].start + common;
            ops.push(CellOp::Release { sequence, positions: positions.clone() });
            ops.push(CellOp::Share { from, to: sequence, positions });
            node = if common < self.nodes[child].tokens.len() { self.split(child, common) } else { child };
            self.nodes[node].last_used = self.clock;
            rest = &rest[common..];
        }
        node
    }

    /// Removes tokens that no sequence will compute, from a node upwards. Returns the new end of the path.
    fn prune(&mut self, tip: NodeId) -> NodeId {
        let mut at = tip;
        while at != ROOT && self.nodes[at].running.is_empty() && !self.nodes[at].is_complete() {
            let node = &mut self.nodes[at];
            self.used -= node.tokens.len() - node.computed;
            node.tokens.truncate(node.computed);
            if node.computed > 0 {
                break;
            }
            at = self.remove(at);
        }
        at
    }

    /// Makes a finished sequence the holder of the leaf where it ends. Elsewhere other sequences hold the cells.
    fn settle(&mut self, sequence: Sequence, end: NodeId, ops: &mut Vec<CellOp>) {
        let node = &mut self.nodes[end];
        if end != ROOT && node.children.is_empty() && node.running.is_empty() && node.holder.is_none() {
            node.holder = Some(sequence);
            ops.push(CellOp::Release { sequence, positions: node.end()..END });
        } else {
            self.retire(sequence, ops);
        }
    }

    /// Releases all cells of a sequence, which is free then.
    fn retire(&mut self, sequence: Sequence, ops: &mut Vec<CellOp>) {
        ops.push(CellOp::Release { sequence, positions: 0..END });
        self.free_sequences.push(sequence);
    }

    fn oldest_leaf(&self, kept: NodeId) -> Option<NodeId> {
        let leaves = self.nodes.iter().filter(|(at, node)| node.holder.is_some() && *at != kept);
        leaves.min_by_key(|(_, node)| node.last_used).map(|(at, _)| at)
    }

    fn evict(&mut self, leaf: NodeId, ops: &mut Vec<CellOp>) {
        let (start, holder) = (self.nodes[leaf].start, self.nodes[leaf].holder);
        self.used -= self.nodes[leaf].tokens.len();
        let parent = self.remove(leaf);
        let Some(holder) = holder else { return };
        // The parent may be a leaf now. Then the holder of the child holds its cells.
        ops.push(CellOp::Release { sequence: holder, positions: start..END });
        self.settle(holder, parent, ops);
    }

    /// Removes a node without children and returns its parent.
    fn remove(&mut self, at: NodeId) -> NodeId {
        let parent = self.nodes.remove(at).parent;
        self.nodes[parent].children.retain(|child| *child != at);
        parent
    }

    fn insert(&mut self, scope: &Scope, parent: NodeId, tokens: &[Token], computed: usize) -> NodeId {
        let (start, tokens, scope) = (self.nodes[parent].end(), tokens.to_vec(), scope.clone());
        let node = Node { parent, scope, start, tokens, computed, last_used: self.clock, ..Node::default() };
        let at = self.nodes.insert(node);
        self.nodes[parent].children.push(at);
        at
    }

    /// Splits a node. The lower part keeps its id, because sequences that end there refer to it. Returns the upper
    /// part.
    fn split(&mut self, at: NodeId, length: usize) -> NodeId {
        let node = &mut self.nodes[at];
        let rest = node.tokens.split_off(length);
        let upper = Node {
            parent: node.parent,
            scope: node.scope.clone(),
            start: node.start,
            tokens: std::mem::replace(&mut node.tokens, rest),
            computed: node.computed.min(length),
            children: vec![at],
            running: node.running.clone(),
            holder: None,
            last_used: node.last_used,
        };
        node.computed = node.computed.saturating_sub(length);
        node.start += length;
        let parent = node.parent;
        let upper = self.nodes.insert(upper);
        self.nodes[at].parent = upper;
        self.nodes[parent].children.retain(|child| *child != at);
        self.nodes[parent].children.push(upper);
        upper
    }

    fn child(&self, scope: &Scope, node: NodeId, first: Token) -> Option<NodeId> {
        let mut children = self.nodes[node].children.iter().copied();
        children.find(|child| {
            let child = &self.nodes[*child];
            child.tokens.first() == Some(&first) && child.scope == *scope
        })
    }

    /// The nodes from below the root down to this one.
    fn path(&self, to: NodeId) -> Vec<NodeId> {
        let mut path = Vec::new();
        let mut at = to;
        while at != ROOT {
            path.push(at);
            at = self.nodes[at].parent;
        }
        path.reverse();
        path
    }

    /// A sequence that sees everything that is computed up to the end of a node. There always is one: a running
    /// sequence, or the holder of a leaf at or below the node.
    fn holder_of(&self, node: NodeId) -> Option<Sequence> {
        let mut at = node;
        loop {
            let node = &self.nodes[at];
            match node.running.first().copied().or(node.holder) {
                Some(sequence) => return Some(sequence),
                None => at = *node.children.first()?,
            }
        }
    }

    /// The number of computed tokens on the path to the end of a node.
    fn computed_up_to(&self, node: NodeId) -> usize {
        let mut at = node;
        while at != ROOT && self.nodes[at].computed == 0 {
            at = self.nodes[at].parent;
        }
        self.nodes[at].start + self.nodes[at].computed
    }

    fn position(&self, running: &RunningSequence) -> usize {
        self.computed_up_to(running.tip) + running.tail_computed
    }
}

fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
