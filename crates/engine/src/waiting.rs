//! The waiting room: bounded, and fair between those who wait.
//!
//! Everyone who waits stands in the line of a tag (the server passes the key's public id along). Turns go to the tag
//! that has the least under way, and among equals to the one whose last turn is longest ago; so a tag with a hundred
//! waiting does not delay another one's first. When the room is full, the longest line gives way.

use std::collections::VecDeque;

/// Who a request is counted for; opaque.
pub(crate) type Tag = std::sync::Arc<str>;

struct Line<J> {
    tag: Tag,
    jobs: VecDeque<J>,
    last_turn: u64,
}

/// Everyone who waits.
pub(crate) struct WaitingRoom<J> {
    lines: Vec<Line<J>>,
    limit: usize,
    turns: u64,
}

impl<J> WaitingRoom<J> {
    /// An empty room for so many.
    pub(crate) fn new(limit: usize) -> Self {
        Self { lines: Vec::new(), limit, turns: 0 }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.jobs.len()).sum()
    }

    /// Somebody comes in. If there is no room, somebody is turned away, and returned: the last of the longest line, or
    /// the newcomer if there is no longer line than its own.
    pub(crate) fn enter(&mut self, tag: Tag, job: J) -> Option<J> {
        let own = self.line(&tag).map_or(0, |line| line.jobs.len());
        let mut turned_away = None;
        if self.len() >= self.limit {
            let longest = self.lines.iter_mut().max_by_key(|line| line.jobs.len());
            let Some(longest) = longest.filter(|line| line.jobs.len() > own + 1) else { return Some(job) };
            turned_away = longest.jobs.pop_back();
        }
        match self.line(&tag) {
            Some(line) => line.jobs.push_back(job),
            None => self.lines.push(Line { tag, jobs: VecDeque::from([job]), last_turn: self.turns }),
        }
        turned_away
    }

    /// Whose turn it is, given how much each tag has under way.
    pub(crate) fn next(&self, under_way: impl Fn(&Tag) -> usize) -> Option<(&Tag, &J)> {
        let line = self.lines.iter().min_by_key(|line| (under_way(&line.tag), line.last_turn))?;
        Some((&line.tag, line.jobs.front()?))
    }

    /// Lets the first of a line go.
    pub(crate) fn leave(&mut self, tag: &Tag) -> Option<J> {
        self.turns += 1;
        let turns = self.turns;
        let line = self.line(tag)?;
        line.last_turn = turns;
        let job = line.jobs.pop_front();
        self.lines.retain(|line| !line.jobs.is_empty());
        job
    }

    /// Takes everyone out who is not to wait any longer.
    pub(crate) fn take_out(&mut self, is_over: impl Fn(&J) -> bool) -> Vec<J> {
        let mut over = Vec::new();
        for line in &mut self.lines {
            let (gone, stay): (VecDeque<J>, _) = std::mem::take(&mut line.jobs).into_iter().partition(&is_over);
            line.jobs = stay;
            over.extend(gone);
        }
        self.lines.retain(|line| !line.jobs.is_empty());
        over
    }

    fn line(&mut self, tag: &Tag) -> Option<&mut Line<J>> {
        self.lines.iter_mut().find(|line| line.tag == *tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> Tag {
        name.into()
    }

    #[test]
    fn a_hundred_waiting_of_one_tag_do_not_delay_the_one_of_another() {
        let mut room = WaitingRoom::new(200);
        for at in 0..100 {
            assert_eq!(room.enter(tag("greedy"), at), None);
        }
        assert_eq!(room.enter(tag("modest"), 1000), None);
        // The greedy one has something under way, the modest one has not.
        let (next, job) = room.next(|tag| usize::from(&**tag == "greedy")).unwrap();
        assert_eq!((&**next, *job), ("modest", 1000));
    }

    #[test]
    fn equals_take_turns_and_each_line_keeps_its_order() {
        let mut room = WaitingRoom::new(10);
        for at in 0..3 {
            room.enter(tag("a"), at);
            room.enter(tag("b"), 10 + at);
        }
        let mut order = Vec::new();
        while let Some((next, _)) = room.next(|_| 0) {
            let next = next.clone();
            order.extend(room.leave(&next));
        }
        assert_eq!(order, [0, 10, 1, 11, 2, 12]);
        assert_eq!(room.len(), 0);
    }

    #[test]
    fn a_full_room_turns_the_last_of_the_longest_line_away() {
        let mut room = WaitingRoom::new(3);
        for at in 0..3 {
            room.enter(tag("greedy"), at);
        }
        assert_eq!(room.enter(tag("greedy"), 3), Some(3), "its own line is the longest");
        assert_eq!(room.enter(tag("modest"), 10), Some(2), "the newest of the longest line gives way");
        assert_eq!(room.enter(tag("modest"), 11), Some(11), "both have their share now");
        assert_eq!(room.len(), 3);
    }

    #[test]
    fn whoever_is_over_is_taken_out_and_the_others_stay() {
        let mut room = WaitingRoom::new(10);
        for at in 0..6 {
            room.enter(tag(if at < 3 { "a" } else { "b" }), at);
        }
        assert_eq!(room.take_out(|job| job % 2 == 0), [0, 2, 4]);
        assert_eq!(room.len(), 3);
    }
}
