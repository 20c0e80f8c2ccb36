//! Features as they are collected: hashes with values, in groups that weigh the same however many features they have. Names are only
//! made when somebody wants an explanation.

/// Features of one conversation.
#[derive(Debug)]
pub(in crate::scorer) struct Features {
    /// Hash and value.
    pub(in crate::scorer) values: Vec<(u32, f32)>,
    names: Option<Vec<String>>,
    group_start: usize,
}

/// What a feature is known by: a space, and what follows in it, one thing after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    /// FNV-1a of a text.
    pub(super) fn of(text: &str) -> Self {
        Self(
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    /// Of a number.
    pub(super) fn number(number: u64) -> Self {
        Self(number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// This, and then that.
    pub(super) fn then(self, next: Self) -> Self {
        Self((self.0.rotate_left(23) ^ next.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Finished as by MurmurHash3, so that all bits count.
    pub(super) fn finish(self) -> u32 {
        let hash = (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (hash >> 32) as u32
    }
}

impl Features {
    pub(in crate::scorer) fn new() -> Self {
        Self { values: Vec::with_capacity(1024), names: None, group_start: 0 }
    }

    /// With the name of each feature beside it.
    pub(in crate::scorer) fn named() -> Self {
        Self { names: Some(Vec::new()), ..Self::new() }
    }

    /// The names, in the order of the values.
    pub(in crate::scorer) fn names(&self) -> &[String] {
        self.names.as_deref().unwrap_or_default()
    }

    /// A feature that is known by words.
    pub(super) fn add(&mut self, space: &str, parts: &[&str]) {
        let key = parts.iter().fold(Key::of(space), |key, part| key.then(Key::of(part)));
        self.add_key(key, || format!("{space}:{}", parts.join(" ")));
    }

    /// A feature whose key is known already.
    pub(super) fn add_key(&mut self, key: Key, name: impl FnOnce() -> String) {
        self.values.push((key.finish(), 1.0));
        if let Some(names) = &mut self.names {
            names.push(name());
        }
    }

    /// Ends a group: what is in it shares a weight.
    pub(super) fn end_group(&mut self, weight: f32) {
        let group = &mut self.values[self.group_start..];
        if !group.is_empty() {
            #[expect(clippy::cast_precision_loss, reason = "a few thousand features")]
            let each = weight / (group.len() as f32).sqrt();
            group.iter_mut().for_each(|(_, value)| *value = each);
        }
        self.group_start = self.values.len();
    }
}
