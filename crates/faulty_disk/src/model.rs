//! A model of the files of one folder: their contents on the disk, and changes that are only in memory. Pure: tests can
//! simulate any power cut.
//!
//! Writes are on the disk once the file is synced; a name is created, removed or changed on the disk once the folder is
//! synced. Until then any part of the changes may have reached the disk, in any order, torn at sector boundaries. A failed
//! sync writes some of the changes to the disk and loses the rest: a later sync succeeds without them.

use std::collections::BTreeMap;

const SECTOR: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(usize);

#[derive(Debug, Default)]
pub(crate) struct Model {
    files: Vec<File>,
    /// The names that programs see.
    names: BTreeMap<String, FileId>,
    names_on_disk: BTreeMap<String, FileId>,
    /// Changes of names since the folder was synced.
    renamings: Vec<NameChange>,
}

#[derive(Debug, Default)]
struct File {
    on_disk: Vec<u8>,
    /// Changes since the file was synced.
    changes: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Resize(usize),
}

#[derive(Debug, Clone)]
enum NameChange {
    Create(String, FileId),
    Remove(String),
    Rename(String, String),
}

impl Model {
    /// A disk with these files.
    pub(crate) fn with_files(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let mut model = Self::default();
        for (name, on_disk) in files {
            model.files.push(File { on_disk, changes: Vec::new() });
            model.names.insert(name, FileId(model.files.len() - 1));
        }
        model.names_on_disk = model.names.clone();
        model
    }

    pub(crate) fn find(&self, name: &str) -> Option<FileId> {
        self.names.get(name).copied()
    }

    pub(crate) fn create(&mut self, name: &str) -> FileId {
        self.files.push(File::default());
        let id = FileId(self.files.len() - 1);
        self.names.insert(name.to_owned(), id);
        self.renamings.push(NameChange::Create(name.to_owned(), id));
        id
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.names.remove(name);
        self.renamings.push(NameChange::Remove(name.to_owned()));
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if let Some(id) = self.names.remove(from) {
            self.names.insert(to.to_owned(), id);
            self.renamings.push(NameChange::Rename(from.to_owned(), to.to_owned()));
        }
    }

    pub(crate) fn write(&mut self, FileId(id): FileId, offset: usize, bytes: &[u8]) {
        self.files[id].changes.push(Change::Write { offset, bytes: bytes.to_owned() });
    }

    pub(crate) fn resize(&mut self, FileId(id): FileId, size: usize) {
        self.files[id].changes.push(Change::Resize(size));
    }

    pub(crate) fn sync(&mut self, FileId(id): FileId) {
        let File { on_disk, changes } = &mut self.files[id];
        changes.drain(..).for_each(|change| change.apply(on_disk));
    }

    /// Some of the writes reach the disk; the rest is lost.
    pub(crate) fn fail_sync(&mut self, FileId(id): FileId, rng: &mut fastrand::Rng) {
        let File { on_disk, changes } = &mut self.files[id];
        let changes = std::mem::take(changes);
        Survival::random(rng).apply(&changes, on_disk, rng);
    }

    pub(crate) fn sync_folder(&mut self) {
        let changes = std::mem::take(&mut self.renamings);
        changes.iter().for_each(|change| change.apply(&mut self.names_on_disk));
    }

    /// One of the possible states of the files after a power cut.
    pub(crate) fn after_power_cut(&self, rng: &mut fastrand::Rng) -> BTreeMap<String, Vec<u8>> {
        let mut names = self.names_on_disk.clone();
        let survival = Survival::random(rng);
        for (at, change) in self.renamings.iter().enumerate() {
            if survival.keeps(at, self.renamings.len(), rng) {
                change.apply(&mut names);
            }
        }
        let content = |FileId(id): FileId, rng: &mut _| {
            let mut content = self.files[id].on_disk.clone();
            Survival::random(rng).apply(&self.files[id].changes, &mut content, rng);
            content
        };
        names.into_iter().map(|(name, id)| (name, content(id, rng))).collect()
    }
}

impl Change {
    fn apply(self, content: &mut Vec<u8>) {
        match self {
            Self::Resize(size) => content.resize(size, 0),
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[offset..end].copy_from_slice(&bytes);
            }
        }
    }

    /// The part of a write in each sector.
    fn sectors(&self) -> Vec<Self> {
        let Self::Write { offset, bytes } = self else { return vec![self.clone()] };
        let mut sectors = Vec::new();
        let mut start = 0;
        while start < bytes.len() {
            let end = bytes.len().min(((offset + start) / SECTOR + 1) * SECTOR - offset);
            sectors.push(Self::Write { offset: offset + start, bytes: bytes[start..end].to_owned() });
            start = end;
        }
        sectors
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            Self::Create(name, id) => drop(names.insert(name.clone(), *id)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
        }
    }
}

/// Which of the unsynced changes reach the disk.
#[derive(Debug, Clone, Copy)]
enum Survival {
    /// The first ones, up to this share.
    Prefix(f64),
    /// Each with this probability.
    Any(f64),
}

impl Survival {
    fn random(rng: &mut fastrand::Rng) -> Self {
        match rng.u8(..6) {
            0 => Self::Any(0.0),
            1 => Self::Any(1.0),
            2 | 3 => Self::Prefix(rng.f64()),
            _ => Self::Any(rng.f64()),
        }
    }

    fn keeps(self, at: usize, of: usize, rng: &mut fastrand::Rng) -> bool {
        match self {
            Self::Prefix(share) => (at as f64) < share * of as f64,
            Self::Any(probability) => rng.f64() < probability,
        }
    }

    fn apply(self, changes: &[Change], content: &mut Vec<u8>, rng: &mut fastrand::Rng) {
        let sectors: Vec<_> = changes.iter().flat_map(Change::sectors).collect();
        let of = sectors.len();
        for (at, sector) in sectors.into_iter().enumerate() {
            if self.keeps(at, of, rng) {
                sector.apply(content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(model: &Model) -> Vec<BTreeMap<String, Vec<u8>>> {
        let mut rng = fastrand::Rng::with_seed(7);
        (0..500).map(|_| model.after_power_cut(&mut rng)).collect()
    }

    #[test]
    fn synced_writes_survive_every_power_cut() {
        let mut model = Model::default();
        let file = model.create("a");
        model.write(file, 0, &[1; 2000]);
        model.sync(file);
        model.sync_folder();
        model.write(file, 1000, &[2; 2000]);
        for state in states(&model) {
            let content = &state["a"];
            assert!(content.len() >= 2000 && content[..1000].iter().all(|&byte| byte == 1));
            assert!(content[1000..2000].iter().all(|&byte| byte == 1 || byte == 2));
        }
    }

    #[test]
    fn unsynced_writes_may_survive_be_torn_or_be_lost() {
        let mut model = Model::default();
        let file = model.create("a");
        model.sync_folder();
        model.write(file, 0, &[1; 1024]);
        let found: std::collections::BTreeSet<_> = states(&model).into_iter().map(|state| state["a"].clone()).collect();
        let torn = [vec![0; 512], vec![1; 512]].concat();
        assert_eq!(found, [vec![], vec![1; 512], vec![1; 1024], torn].into());
    }

    #[test]
    fn a_name_is_certain_only_after_its_folder_was_synced() {
        let mut model = Model::default();
        let file = model.create("new");
        model.write(file, 0, b"content");
        model.sync(file);
        assert!(states(&model).iter().any(BTreeMap::is_empty));
        model.sync_folder();
        assert!(states(&model).iter().all(|state| state["new"] == b"content"));
        model.rename("new", "kept");
        let found = states(&model);
        assert!(found.iter().any(|state| state.contains_key("new")));
        assert!(found.iter().any(|state| state.contains_key("kept")));
        assert!(found.iter().all(|state| state.len() == 1));
        model.sync_folder();
        model.remove("kept");
        let found = states(&model);
        assert!(found.iter().any(BTreeMap::is_empty) && found.iter().any(|state| state.contains_key("kept")));
    }

    #[test]
    fn a_sync_after_a_failed_one_does_not_restore_lost_writes() {
        let mut model = Model::default();
        let file = model.create("a");
        model.sync_folder();
        let mut lost = false;
        for seed in 0..100 {
            model.write(file, 0, &[seed; 512]);
            model.fail_sync(file, &mut fastrand::Rng::with_seed(seed.into()));
            model.sync(file);
            lost |= states(&model).iter().all(|state| state["a"] != [seed; 512]);
        }
        assert!(lost);
    }
}
