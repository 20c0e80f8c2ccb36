//! The features of one conversation: hashes with values. They are in groups, and the weight of a group does not grow with
//! the number of its features. Names are created only for explanations.

#[derive(Debug)]
pub(in crate::scorer) struct Features {
    /// Hash and value.
    pub(in crate::scorer) values: Vec<(u32, f32)>,
    names: Option<Vec<String>>,
    group_start: usize,
}

/// An incremental hash of a feature: of its namespace, then of one part after another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    /// FNV-1a of a text.
    pub(super) fn from_text(text: &str) -> Self {
        Self(
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    pub(super) fn number(number: u64) -> Self {
        Self(number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub(super) fn then(self, next: Self) -> Self {
        Self((self.0.rotate_left(23) ^ next.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// MurmurHash3's finalizer, so that all bits count.
    pub(super) fn finish(self) -> u32 {
        let hash = (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (hash >> 32) as u32
    }
}

impl Features {
    pub(in crate::scorer) fn new() -> Self {
        Self { values: Vec::with_capacity(1024), names: None, group_start: 0 }
    }

    /// Also keeps the names.
    pub(in crate::scorer) fn named() -> Self {
        Self { names: Some(Vec::new()), ..Self::new() }
    }

    /// In the order of the values.
    pub(in crate::scorer) fn names(&self) -> &[String] {
        self.names.as_deref().unwrap_or_default()
    }

    pub(super) fn add(&mut self, space: &str, parts: &[&str]) {
        let key = parts.iter().fold(Key::from_text(space), |key, part| key.then(Key::from_text(part)));
        self.add_key(key, || format!("{space}:{}", parts.join(" ")));
    }

    pub(super) fn add_key(&mut self, key: Key, name: impl FnOnce() -> String) {
        self.values.push((key.finish(), 1.0));
        if let Some(names) = &mut self.names {
            names.push(name());
        }
    }

    /// The features since the last call share this weight.
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
