//! Records the promises made to callers, and checks that a database keeps them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use chat::{ApiKey, KeyId, RequestId, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags};
use store::{Entry, Grouping, Period, Phase, Project, Step, Store, UsageQuery, Viewer};

/// Rows from before this hour may be pruned; all others are from after it.
pub(crate) const OLDEST_KEPT_SECONDS: u64 = 1_700_000_000 / 3600 * 3600;

/// The results that callers got, and their attempts.
#[derive(Default)]
pub(crate) struct Expected {
    pub(crate) rows: HashMap<RequestId, SentRow>,
    pub(crate) keys: HashMap<KeyId, KnownKey>,
    /// Finished backups, with the rows that they must contain.
    pub(crate) backups: HashMap<String, Vec<RequestId>>,
}

pub(crate) struct SentRow {
    pub(crate) entry: Entry,
    /// There is a receipt for it.
    pub(crate) promised: bool,
    /// Whether the last check found it.
    pub(crate) is_there: bool,
}

impl SentRow {
    fn may_be_pruned(&self) -> bool {
        self.entry.request_id.unix_seconds() < OLDEST_KEPT_SECONDS
    }
}

pub(crate) struct KnownKey {
    pub(crate) key: Arc<ApiKey>,
    pub(crate) revocation: Revocation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Revocation {
    None,
    /// An attempt failed, or got no result.
    Tried,
    Promised,
}

impl Expected {
    pub(crate) fn promised_rows(&self) -> Vec<RequestId> {
        self.rows.iter().filter(|(_, row)| row.promised && !row.may_be_pruned()).map(|(id, _)| *id).collect()
    }

    /// Panics if a promise is broken.
    pub(crate) async fn check(&mut self, store: &Store, file: &Path) {
        let connection = open(file);
        connection.execute_batch("BEGIN").unwrap(); // one snapshot: the ledger may be folding
        check_soundness(&connection);
        self.check_rows(&connection);
        self.check_sums(&connection);
        self.check_lists(&connection);
        self.check_keys(&connection, store).await;
        let query = UsageQuery {
            period: Period::since(Timestamp::default()),
            key: None,
            step: Step::Day,
            person: None,
            group: Some(Grouping::Key),
        };
        let report = store.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap();
        assert_eq!(report.all_latencies().count(Phase::Total), report.totals.requests, "latencies and requests");
        assert!(report.all_latencies().count(Phase::Persist) <= report.totals.requests, "a commit is timed twice");
        let by_outcome: u64 = report.by_outcome.iter().map(|outcome| outcome.figures.requests).sum();
        assert_eq!(by_outcome, report.totals.requests);
    }

    fn check_rows(&mut self, connection: &Connection) {
        let mut select = connection
            .prepare("SELECT id, key_id, status, code, prompt_tokens, completion_tokens, total_us FROM requests")
            .unwrap();
        let rows = select.query_map([], |row| {
            let id = RequestId::from_bytes(row.get(0)?);
            let key = row.get::<_, String>(1)?;
            let outcome = (row.get::<_, u16>(2)?, row.get::<_, Option<String>>(3)?);
            Ok((id, (key, outcome, row.get(4)?, row.get(5)?, row.get::<_, u64>(6)?)))
        });
        let mut found: HashMap<_, _> = rows.unwrap().map(Result::unwrap).collect();
        for (id, row) in &mut self.rows {
            match found.get(id) {
                Some(columns) => {
                    let entry = &row.entry;
                    let outcome = (entry.outcome.status, entry.outcome.code.map(str::to_owned));
                    let total_us = entry.timings.total.as_micros() as u64;
                    let sent = (entry.key.to_string(), outcome, entry.usage.prompt, entry.usage.completion, total_us);
                    assert_eq!(*columns, sent, "the row {id} differs from the sent one");
                }
                None => assert!(!row.promised || row.may_be_pruned(), "the row {id} was promised but is gone"),
            }
            row.is_there = found.remove(id).is_some();
        }
        assert!(found.is_empty(), "rows that were never sent: {found:?}");
    }

    /// Every sum equals that of the folded rows in the ledger. Sums also contain pruned rows: at least the promised ones,
    /// and at most all that were sent.
    fn check_sums(&self, connection: &Connection) {
        let unfolded = unfolded(connection);
        let mut hours = BTreeMap::<_, Sums>::new();
        let mut spans = BTreeMap::<_, Sums>::new();
        let (mut old_sent, mut old_promised) = (0, 0);
        for (id, row) in &self.rows {
            if row.may_be_pruned() {
                old_sent += 1;
                old_promised += u64::from(row.promised);
                continue;
            }
            if !row.is_there || unfolded.contains(id) {
                continue;
            }
            let (entry, seconds) = (&row.entry, row.entry.request_id.unix_seconds());
            let sums = Sums::from_entry(entry);
            let key = entry.key.to_string();
            let owner = entry.owner.map_or_else(String::new, |owner| owner.to_string());
            let project = entry.project.as_ref().map_or_else(String::new, Project::to_string);
            let (status, code) = (entry.outcome.status, entry.outcome.code.unwrap_or("").to_owned());
            let of_person = entry.owner.map(|owner| (format!("@{owner}"), String::new()));
            let scopes = [Some(Default::default()), of_person, Some((key.clone(), owner.clone()))];
            for (scope, owner) in scopes.into_iter().flatten() {
                hours.entry((scope, seconds / 3600 * 3600, status, code.clone(), owner)).or_default().add(&sums);
            }
            for span in [3600, 86_400, 8 * 86_400] {
                let part = (span, seconds / span * span, key.clone(), owner.clone(), project.clone());
                spans.entry(part).or_default().add(&sums);
            }
        }
        let figures = "requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
            total_measured";
        let recent = format!("start >= {}", OLDEST_KEPT_SECONDS / (8 * 86_400) * 8 * 86_400);
        let mut select = connection
            .prepare(&format!("SELECT {figures}, party, start, status, code, account FROM rollups WHERE {recent}"))
            .unwrap();
        let rows = select.query_map([], |row| Ok((row_key(row)?, Sums::read(row)?)));
        assert_same(&rows.unwrap().map(Result::unwrap).collect(), &hours, "by hour");
        let mut select = connection
            .prepare(&format!("SELECT {figures}, span, start, key_id, account, project FROM sums WHERE {recent}"))
            .unwrap();
        let rows = select.query_map([], |row| Ok((row_key(row)?, Sums::read(row)?)));
        assert_same(&rows.unwrap().map(Result::unwrap).collect(), &spans, "by key, owner and project");

        let old = format!("SELECT coalesce(sum(requests), 0) FROM rollups WHERE party = '' AND NOT {recent}");
        let old: u64 = connection.query_row(&old, [], |row| row.get(0)).unwrap();
        let old = old + unfolded.iter().filter(|id| id.unix_seconds() < OLDEST_KEPT_SECONDS).count() as u64;
        assert!((old_promised..=old_sent).contains(&old), "{old} old rows are counted: {old_promised} to {old_sent}");
    }

    /// The lists by key contain every folded row, and no other.
    fn check_lists(&self, connection: &Connection) {
        let unfolded = unfolded(connection).len() as u64;
        let count = |sql| connection.query_row(sql, [], |row| row.get::<_, u64>(0)).unwrap();
        let of_keys = count("SELECT count(*) FROM requests_of_parties JOIN requests USING (id) WHERE party = key_id");
        let of_people =
            count("SELECT count(*) FROM requests_of_parties JOIN requests USING (id) WHERE party = '@' || account");
        let all = count("SELECT count(*) FROM requests_of_parties");
        assert_eq!(of_keys + of_people, all, "a list contains a row that does not exist");
        assert_eq!(of_keys + unfolded, count("SELECT count(*) FROM requests"), "folded rows that are in no list");
        let owned = count("SELECT count(*) FROM requests WHERE account IS NOT NULL");
        assert!((of_people..=of_people + unfolded).contains(&owned), "folded rows that are in no person's list");
    }

    async fn check_keys(&mut self, connection: &Connection, store: &Store) {
        for (id, known) in &mut self.keys {
            let accepted = store.keys().authenticate(&known.key).await.unwrap().is_some();
            match known.revocation {
                Revocation::None => assert!(accepted, "the key {id} was created but is gone"),
                Revocation::Tried if accepted => {}
                Revocation::Tried => known.revocation = Revocation::Promised,
                Revocation::Promised => assert!(!accepted, "the key {id} was revoked but is accepted again"),
            }
        }
        let count = |sql| connection.query_row(sql, [], |row| row.get::<_, u64>(0)).unwrap();
        let created = count("SELECT count(*) FROM audit WHERE action = 'created-key'");
        let revoked = count("SELECT count(*) FROM audit WHERE action = 'revoked-key'");
        assert_eq!(created, count("SELECT count(*) FROM keys"), "keys and the audit log");
        assert_eq!(revoked, count("SELECT count(*) FROM keys WHERE revoked_at IS NOT NULL"), "keys and the audit log");
    }

    /// Finished backups exist, and every file with a backup's name is complete. Then removes them.
    pub(crate) fn check_backups(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with("backup") {
                continue;
            }
            let promised = self.backups.remove(&name);
            if name.ends_with(".db") {
                let connection = open(&path);
                check_soundness(&connection);
                let mut find = connection.prepare("SELECT count(*) FROM requests WHERE id = ?1").unwrap();
                for id in promised.into_iter().flatten() {
                    let found: u64 = find.query_row([id.to_bytes()], |row| row.get(0)).unwrap();
                    assert_eq!(found, 1, "the row {id} is not in the backup {name}");
                }
            }
            std::fs::remove_file(path).unwrap();
        }
        let missing: Vec<_> = self.backups.keys().collect();
        assert!(missing.is_empty(), "finished backups are gone: {missing:?}");
    }
}

fn open(file: &Path) -> Connection {
    Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn check_soundness(connection: &Connection) {
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "{:?}", connection.path());
    let broken: u64 =
        connection.query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0)).unwrap();
    assert_eq!(broken, 0, "rows that refer to nothing");
}

/// The unfolded rows; each must exist, and be listed once.
fn unfolded(connection: &Connection) -> HashSet<RequestId> {
    let mut list = connection.prepare("SELECT requests FROM unfolded").unwrap();
    let listed = list.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let mut find = connection.prepare("SELECT count(*) FROM requests WHERE id = ?1").unwrap();
    let mut unfolded = HashSet::new();
    for ids in listed {
        for id in ids.unwrap().as_chunks::<16>().0 {
            let there: u64 = find.query_row([id], |row| row.get(0)).unwrap();
            assert_eq!(there, 1, "a listed row is gone");
            assert!(unfolded.insert(RequestId::from_bytes(*id)), "a row is listed twice");
        }
    }
    unfolded
}

fn assert_same<K: Ord + Debug>(found: &BTreeMap<K, Sums>, of_rows: &BTreeMap<K, Sums>, which: &str) {
    for key in found.keys().chain(of_rows.keys()) {
        assert_eq!(found.get(key), of_rows.get(key), "the sum {which} of {key:?} differs from that of its rows");
    }
}

/// Requests; then for prompt, completion and total the sum of tokens and the number of measured requests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums([u64; 7]);

/// What a sum is of: the five columns after its figures.
fn row_key<A: FromSql, B: FromSql, C: FromSql, D: FromSql, E: FromSql>(
    row: &rusqlite::Row<'_>,
) -> Result<(A, B, C, D, E), rusqlite::Error> {
    Ok((row.get(7)?, row.get(8)?, row.get(9)?, row.get(10)?, row.get(11)?))
}

impl Sums {
    fn from_entry(entry: &Entry) -> Self {
        let tokens = [entry.usage.prompt, entry.usage.completion, entry.usage.total];
        let [prompt, completion, total] = tokens.map(|count| (count.unwrap_or(0).into(), count.is_some().into()));
        Self([1, prompt.0, prompt.1, completion.0, completion.1, total.0, total.1])
    }

    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let mut sums = [0; 7];
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = row.get(at)?;
        }
        Ok(Self(sums))
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, part)| *sum += part);
    }
}
