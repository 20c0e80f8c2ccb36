//! Figures by key, person, project and day, over any range of time, equal those of a plain scan of the rows. Also costs,
//! and searches for requests and lines of the audit log.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use chat::{KeyId, KeyName, RequestId, Timestamp, TokenUsage};
use store::{
    AccountId, AuditQuery, Entry, GroupLabel, Grouping, KeyChange, NewAccount, NewKey, Origin, Outcome, Period,
    PersonName, Phase, Price, PriceError, Project, RequestQuery, Role, StatusFilter, Step, Store, Timings, UsageGroup,
    UsageQuery, UsageReport, Viewer,
};

use crate::database::{OK, TestDatabase};
use crate::on_each_backend;

on_each_backend!(
    every_grouping_of_every_range_equals_a_scan_of_the_rows,
    hours_whose_rows_were_deleted_are_counted_whole,
    late_rows_are_counted,
    costs_use_current_prices_and_add_up,
    prices_are_in_one_currency,
    filters_find_the_same_requests_as_a_scan_of_the_rows,
    lines_of_the_audit_log_are_found_by_any_part,
);

const FAILED: Outcome = Outcome { status: 502, code: Some("inference_error") };
const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// Keys: Ada's, Bob's, one without an owner, and one that after half of the rows Ada has given to Bob, and moved to another
/// project.
struct World {
    store: Store,
    _database: TestDatabase,
    keys: [KeyId; 4],
    ada: AccountId,
    bob: AccountId,
    /// Midnight, some days ago.
    start: u64,
    rows: Vec<Entry>,
}

impl World {
    async fn new(database: TestDatabase) -> Self {
        let store = database.open().await;
        let (ada, bob) = (account(&store, "ada").await, account(&store, "bob").await);
        let keys = [
            key(&store, Some(ada), "search").await,
            key(&store, Some(bob), "search").await,
            key(&store, None, "").await,
            key(&store, Some(ada), "night").await,
        ];
        let start = Timestamp::from(SystemTime::now()).as_seconds() / DAY * DAY - 4 * DAY;
        let mut world = Self { store, _database: database, keys, ada, bob, start, rows: Vec::new() };
        world.record(0..300).await;
        let operator = Viewer::operator();
        let given = [KeyChange::Owner(Some(bob)), KeyChange::Project(Project::parse_optional("day").unwrap())];
        assert!(world.store.keys().update(&operator, keys[3], &given).await.unwrap());
        world.record(300..600).await;
        world
    }

    /// Rows at scattered times of the first three days; those of the last key are Ada's in the first half.
    async fn record(&mut self, numbers: std::ops::Range<u64>) {
        let (ledger, writer) = self.store.start_ledger(Duration::from_secs(90 * DAY)).unwrap();
        for number in numbers {
            let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let which = (scattered >> 8) as usize % 4;
            let owner = [Some(self.ada), Some(self.bob), None, Some(if number < 300 { self.ada } else { self.bob })];
            let project = ["search", "search", "", if number < 300 { "night" } else { "day" }][which];
            let second = self.start + (scattered >> 20) % (3 * DAY);
            let tokens = (number % 7 != 0).then_some((scattered >> 50) as u32);
            let row = Entry {
                request_id: RequestId::at_micros(second * 1_000_000 + number, number << 4),
                key: self.keys[which],
                owner: owner[which],
                project: Project::parse_optional(project).unwrap(),
                outcome: if number % 5 == 0 { FAILED } else { OK },
                usage: TokenUsage { prompt: tokens, completion: tokens, total: tokens.map(|tokens| 2 * tokens) },
                timings: Timings { total: Duration::from_millis(number), ..Timings::default() },
                grounding: None,
                inference: Default::default(),
            };
            ledger.enqueue(row.clone(), None).unwrap();
            self.rows.push(row);
        }
        let last = self.rows.last().unwrap().clone();
        ledger.record(last, None).await.unwrap(); // a duplicate, to wait for the others
        writer.stop();
    }

    async fn report(&self, viewer: &Viewer, period: Period, group: Grouping) -> UsageReport {
        let query = UsageQuery { period, key: None, step: Step::Day, person: None, group: Some(group) };
        self.store.usage().report(viewer, &query).await.unwrap().unwrap()
    }

    fn between(&self, from: u64, to: u64) -> Vec<&Entry> {
        self.rows.iter().filter(|row| (from..to).contains(&row.request_id.unix_seconds())).collect()
    }

    async fn viewer(&self, of: AccountId) -> Viewer {
        let origin = Origin { address: "10.0.0.1".into(), agent: "a browser".into() };
        self.store.sessions().begin(of, &origin, store::Proof::Password("hash")).await.unwrap().session.viewer
    }
}

async fn account(store: &Store, name: &str) -> AccountId {
    let operator = Viewer::operator();
    let role = if name == "ada" { Role::Admin } else { Role::Developer };
    let link = store.links().invite(operator.admin().unwrap(), role, name, Duration::from_secs(DAY)).await.unwrap();
    let email = format!("{name}@example.com").parse().unwrap();
    let new = NewAccount { email, name: PersonName::parse(name).unwrap(), password: "hash".into() };
    store.links().use_link(&link, &new, "10.0.0.1").await.unwrap()
}

async fn key(store: &Store, owner: Option<AccountId>, project: &str) -> KeyId {
    let origin = Origin { address: "10.0.0.1".into(), agent: "a browser".into() };
    let viewer = match owner {
        Some(owner) => {
            store.sessions().begin(owner, &origin, store::Proof::Password("hash")).await.unwrap().session.viewer
        }
        None => Viewer::operator(),
    };
    let project = Project::parse_optional(project).unwrap();
    let new = NewKey { name: KeyName::parse("k").unwrap(), completions: true, expires_at: None, project };
    store.keys().create(&viewer, new, u64::MAX).await.unwrap().id()
}

/// Requests, failed ones, measured prompts and their sum, by group.
type Sums = BTreeMap<String, (u64, u64, u64, u64)>;

fn scan<'r>(rows: impl IntoIterator<Item = &'r Entry>, group: impl Fn(&Entry) -> String) -> Sums {
    let mut sums = Sums::new();
    for row in rows {
        let sum = sums.entry(group(row)).or_default();
        sum.0 += 1;
        sum.1 += u64::from(row.outcome.code.is_some());
        sum.2 += u64::from(row.usage.prompt.is_some());
        sum.3 += u64::from(row.usage.prompt.unwrap_or(0));
    }
    sums
}

fn sums(groups: impl IntoIterator<Item = (String, store::Figures, u64)>) -> Sums {
    let row = |(name, figures, succeeded): (String, store::Figures, u64)| {
        (name, (figures.requests, figures.requests - succeeded, figures.prompt.count, figures.prompt.sum))
    };
    groups.into_iter().map(row).collect()
}

fn grouped(groups: &[UsageGroup]) -> Sums {
    sums(groups.iter().map(|group| (name(&group.label), group.figures, group.succeeded)))
}

fn name(label: &GroupLabel) -> String {
    match label {
        GroupLabel::Time(start) => start.as_seconds().to_string(),
        GroupLabel::Key(key) => key.id.to_string(),
        GroupLabel::Person(person) => person.as_ref().map_or(String::new(), |person| person.id.to_string()),
        GroupLabel::Project(project) => project.as_ref().map_or(String::new(), Project::to_string),
        GroupLabel::Outcome(status, _) => status.to_string(),
    }
}

async fn every_grouping_of_every_range_equals_a_scan_of_the_rows(database: TestDatabase) {
    let world = World::new(database).await;
    let (start, keys) = (world.start, world.keys);
    let operator = Viewer::operator();
    let bob = world.viewer(world.bob).await;
    let owner = |row: &Entry| row.owner.map_or(String::new(), |owner| owner.to_string());
    let project = |row: &Entry| row.project.as_ref().map_or(String::new(), Project::to_string);
    let day = |row: &Entry| (row.request_id.unix_seconds() / DAY * DAY).to_string();
    for (from, to) in [
        (0, 4 * DAY),
        (1_234, 4 * DAY),
        (HOUR - 1, HOUR + 1),
        (10 * HOUR + 1_200, 10 * HOUR + 1_201),
        (10 * HOUR + 1_200, 10 * HOUR + 3_000),
        (10 * HOUR + 1_200, 11 * HOUR),
        (DAY + 5_000, 2 * DAY + 77_777),
        (17, 3 * DAY - 17),
    ] {
        let (from, to) = (start + from, start + to);
        let period = Period::exactly(Timestamp::from_seconds(from), Timestamp::from_seconds(to));
        let rows = world.between(from, to);
        let label = format!("{} to {}", from - start, to - start);

        let report = world.report(&operator, period, Grouping::Person).await;
        assert!(!report.is_widened, "{label}");
        assert_eq!(report.totals.requests, rows.len() as u64, "{label}");
        assert_eq!(report.all_latencies().count(Phase::Total), rows.len() as u64, "{label}");
        assert_eq!(grouped(&report.groups), scan(rows.iter().copied(), owner), "{label}");
        let report = world.report(&operator, period, Grouping::Key).await;
        assert_eq!(grouped(&report.groups), scan(rows.iter().copied(), |row| row.key.to_string()), "{label}");
        let report = world.report(&operator, period, Grouping::Project).await;
        assert_eq!(grouped(&report.groups), scan(rows.iter().copied(), project), "{label}");
        let report = world.report(&operator, period, Grouping::Time).await;
        assert_eq!(grouped(&report.by_time), scan(rows.iter().copied(), day), "{label}");

        // Bob sees requests of keys that were his at that time, including a key that was Ada's before.
        let his = || rows.iter().copied().filter(|row| row.owner == Some(world.bob));
        let report = world.report(&bob, period, Grouping::Key).await;
        assert_eq!(report.totals.requests, his().count() as u64, "{label}");
        assert_eq!(grouped(&report.groups), scan(his(), |row| row.key.to_string()), "{label}");
        let of_bob =
            UsageQuery { period, key: None, step: Step::Hour, person: Some(world.bob), group: Some(Grouping::Key) };
        let of_bob = world.store.usage().report(&operator, &of_bob).await.unwrap().unwrap();
        assert_eq!(grouped(&of_bob.groups), grouped(&report.groups), "{label}");

        // Of the key that was Ada's before, too, he sees his part.
        let of_key =
            UsageQuery { period, key: Some(keys[3]), step: Step::Hour, person: None, group: Some(Grouping::Project) };
        let of_key = world.store.usage().report(&bob, &of_key).await.unwrap().unwrap();
        let his = || his().filter(|row| row.key == keys[3]);
        assert_eq!(of_key.totals.requests, his().count() as u64, "{label}");
        assert_eq!(grouped(&of_key.groups), scan(his(), project), "{label}");
    }

    // Ada is an administrator, and sees everything; a filter restricts it to her own requests.
    let ada = world.viewer(world.ada).await;
    let all = Period::exactly(Timestamp::from_seconds(start), Timestamp::from_seconds(start + 4 * DAY));
    assert_eq!(world.report(&ada, all, Grouping::Person).await.totals.requests, 600);
    let developer = world.store.accounts().set_role(operator.admin().unwrap(), world.bob, Role::Developer).await;
    assert!(developer.is_ok());

    // A former owner keeps the requests, and does not see the key's current name and project.
    let secret = KeyChange::Project(Project::parse_optional("secret").unwrap());
    assert!(world.store.keys().update(&operator, keys[3], &[KeyChange::Owner(Some(world.ada)), secret]).await.unwrap());
    let his = || world.rows.iter().filter(|row| row.owner == Some(world.bob));
    let report = world.report(&bob, all, Grouping::Project).await;
    assert_eq!(grouped(&report.groups), scan(his(), project));
    let report = world.report(&bob, all, Grouping::Key).await;
    let given = report.groups.iter().find_map(|group| match &group.label {
        GroupLabel::Key(key) if key.id == keys[3] => Some(key),
        _ => None,
    });
    let given = given.unwrap();
    assert_eq!((given.is_visible, &given.project, &*given.name), (false, &None, "given to another person"));
    let listed =
        world.store.usage().requests(&bob, &RequestQuery { limit: 1000, ..RequestQuery::default() }).await.unwrap();
    let mut ids: Vec<_> = his().map(|row| row.request_id).collect();
    ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
    assert_eq!(listed.iter().map(|row| row.request_id).collect::<Vec<_>>(), ids);
    assert!(listed.iter().all(|row| (row.key_name == "given to another person") == (row.key == keys[3])));
    for row in &world.rows {
        let found = world.store.usage().request(&bob, row.request_id).await.unwrap();
        assert_eq!(found.is_some(), row.owner == Some(world.bob), "{}", row.request_id);
    }
}

async fn late_rows_are_counted(database: TestDatabase) {
    let store = database.open().await;
    let key = key(&store, None, "").await;
    let now = Timestamp::from(SystemTime::now()).as_seconds();
    let first = now - 30 * DAY;
    let period = Period::since(Timestamp::from_seconds(first));
    let query = UsageQuery { period, key: None, step: Step::Day, person: None, group: Some(Grouping::Key) };
    for round in 1..=4_u64 {
        // Rows that a ledger has not folded when it stops are folded by the next one.
        let (ledger, writer) = store.start_ledger(Duration::from_secs(3650 * DAY)).unwrap();
        // Before and after the start of the period, in its middle, and in hours and days that are not over or just over.
        for second in [first - 2 * HOUR, first + 2 * HOUR, now - 20 * DAY, now - 5 * DAY, now - 2 * HOUR, now] {
            let mut row = crate::database::entry(key);
            row.request_id = RequestId::at_micros(second * 1_000_000, round << 4);
            ledger.record(row, None).await.unwrap();
        }
        for when in ["first", "again"] {
            let report = store.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap();
            assert_eq!(report.totals.requests, 5 * round, "{when}");
            assert_eq!(report.groups[0].figures.requests, 5 * round, "{when}");
        }
        writer.stop();
        let of_keys = store.usage().by_key(&Viewer::operator(), period).await.unwrap();
        assert_eq!(of_keys[&key].requests, 5 * round);
    }
}

async fn hours_whose_rows_were_deleted_are_counted_whole(database: TestDatabase) {
    let store = database.open().await;
    let key = key(&store, None, "").await;
    // 100 days ago: the start of a ledger deletes rows of that age, but not their sums.
    let hour = Timestamp::from(SystemTime::now()).as_seconds() / HOUR * HOUR - 100 * DAY;
    let (ledger, writer) = store.start_ledger(Duration::from_secs(3650 * DAY)).unwrap();
    for second in [60, 1_800, 3_500] {
        let mut row = crate::database::entry(key);
        row.request_id = RequestId::at_micros((hour + second) * 1_000_000, second << 4);
        ledger.record(row, None).await.unwrap();
    }
    writer.stop();
    let period = Period::exactly(Timestamp::from_seconds(hour + 1_000), Timestamp::from_seconds(hour + 2_000));
    let query = UsageQuery { period, key: None, step: Step::Hour, person: None, group: Some(Grouping::Key) };
    let report = async || store.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap();
    let exact = report().await;
    assert_eq!((exact.totals.requests, exact.is_widened, exact.groups[0].figures.requests), (1, false, 1));

    let (_ledger, writer) = store.start_ledger(Duration::from_secs(90 * DAY)).unwrap();
    let mut widened = report().await;
    for _ in 0..300 {
        if widened.is_widened {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        widened = report().await;
    }
    writer.stop();
    assert_eq!((widened.totals.requests, widened.is_widened, widened.groups[0].figures.requests), (3, true, 3));
    assert_eq!((widened.since, widened.until), (Timestamp::from_seconds(hour), Timestamp::from_seconds(hour + HOUR)));
}

fn price(prompt: &str, completion: &str) -> Price {
    Price { prompt: prompt.parse().unwrap(), completion: completion.parse().unwrap() }
}

async fn costs_use_current_prices_and_add_up(database: TestDatabase) {
    let world = World::new(database).await;
    let (store, operator) = (&world.store, Viewer::operator());
    let admin = operator.admin().unwrap();
    let end = world.start + 4 * DAY;
    let period = Period::exactly(Timestamp::from_seconds(world.start + 777), Timestamp::from_seconds(end));
    assert_eq!(world.report(&operator, period, Grouping::Key).await.cost, None);

    let search = Project::parse("search").unwrap();
    store.prices().set(admin, None, price("1", "2"), "EUR".parse().ok()).await.unwrap();
    for with_project in [false, true] {
        if with_project {
            store.prices().set(admin, Some(&search), price("0.5", "0.000001"), None).await.unwrap();
        }
        let cost = |rows: Vec<&Entry>| {
            let of = |row: &&Entry| {
                let tokens = u128::from(row.usage.prompt.unwrap_or(0));
                let is_search = with_project && row.project.as_ref() == Some(&search);
                tokens * if is_search { 500_000 + 1 } else { 1_000_000 + 2_000_000 }
            };
            let trillionths: u128 = rows.iter().map(of).sum();
            let text = format!("{:013}", trillionths);
            let (whole, rest) = text.split_at(text.len() - 12);
            format!("{whole}.{:0<2}", rest.trim_end_matches('0'))
        };
        let rows = world.between(world.start + 777, end);
        for group in [Grouping::Key, Grouping::Person, Grouping::Project, Grouping::Time] {
            let report = world.report(&operator, period, group).await;
            assert_eq!(report.currency.unwrap().as_str(), "EUR");
            assert_eq!(report.cost.unwrap().exact(), cost(rows.clone()), "{group:?}");
        }
        for usage in world.report(&operator, period, Grouping::Person).await.groups {
            let id = name(&usage.label);
            let is_theirs = |row: &&Entry| row.owner.map_or(String::new(), |owner| owner.to_string()) == id;
            assert_eq!(usage.cost.unwrap().exact(), cost(rows.iter().copied().filter(is_theirs).collect()), "{id:?}");
        }
        for slice in world.report(&operator, period, Grouping::Time).await.by_time {
            let start: u64 = name(&slice.label).parse().unwrap();
            let day = start..start + DAY;
            let of_day = rows.iter().copied().filter(|row| day.contains(&row.request_id.unix_seconds())).collect();
            assert_eq!(slice.cost.unwrap().exact(), cost(of_day), "{start}");
        }
    }
    // Usage counts for the project that the key had at that time.
    let before = world.report(&operator, period, Grouping::Project).await;
    let change = KeyChange::Project(None);
    assert!(store.keys().update(&operator, world.keys[0], std::slice::from_ref(&change)).await.unwrap());
    assert!(store.keys().update(&operator, world.keys[1], &[change]).await.unwrap());
    assert_eq!(world.report(&operator, period, Grouping::Project).await.groups, before.groups);
    assert!(before.groups.iter().any(|group| group.label == GroupLabel::Project(Some(search.clone()))));
}

async fn prices_are_in_one_currency(database: TestDatabase) {
    let store = database.open().await;
    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    let search = Project::parse("search").unwrap();
    let refused = store.prices().set(admin, None, price("1", "1"), None).await;
    assert!(matches!(refused, Err(PriceError::NoCurrency)), "{refused:?}");
    store.prices().set(admin, None, price("1", "1"), "EUR".parse().ok()).await.unwrap();
    let refused = store.prices().set(admin, Some(&search), price("1", "1"), "USD".parse().ok()).await;
    assert!(matches!(refused, Err(PriceError::OtherCurrency(_))), "{refused:?}");
    store.prices().set(admin, Some(&search), price("3", "4"), None).await.unwrap();
    store.prices().set(admin, Some(&search), price("5", "6"), "EUR".parse().ok()).await.unwrap();
    let prices = store.prices().list(&operator).await.unwrap();
    assert_eq!((prices.default, prices.projects[&search]), (Some(price("1", "1")), price("5", "6")));
    assert!(store.prices().remove(admin, None).await.unwrap());
    assert!(!store.prices().remove(admin, None).await.unwrap());
    assert!(store.prices().remove(admin, Some(&search)).await.unwrap());
    store.prices().set(admin, None, price("1", "1"), "USD".parse().ok()).await.unwrap();
    let bob = account(&store, "bob").await;
    let origin = Origin { address: "10.0.0.1".into(), agent: "a browser".into() };
    let bob = store.sessions().begin(bob, &origin, store::Proof::Password("hash")).await.unwrap().session.viewer;
    assert!(bob.admin().is_none(), "only administrators set prices");
}

async fn filters_find_the_same_requests_as_a_scan_of_the_rows(database: TestDatabase) {
    let world = World::new(database).await;
    let operator = Viewer::operator();
    let all = RequestQuery { limit: 1000, ..RequestQuery::default() };
    let at = |second| Timestamp::from_seconds(world.start + second);
    let slow = Some(Duration::from_millis(450));
    let cases = [
        all.clone(),
        RequestQuery { since: at(10_000), until: Some(at(DAY + 1)), ..all.clone() },
        RequestQuery { status: Some(StatusFilter::Failed), ..all.clone() },
        RequestQuery { status: Some(StatusFilter::Is(502)), min_latency: slow, ..all.clone() },
        RequestQuery { status: Some(StatusFilter::Is(200)), person: Some(world.bob), ..all.clone() },
        RequestQuery { status: Some(StatusFilter::Is(413)), ..all.clone() },
        RequestQuery { person: Some(world.ada), ..all.clone() },
        RequestQuery { key: Some(world.keys[3]), person: Some(world.ada), min_latency: slow, ..all.clone() },
        RequestQuery { key: Some(world.keys[2]), until: Some(at(2 * DAY)), ..all.clone() },
    ];
    for query in cases {
        let is_found = |row: &&Entry| {
            let (second, until) = (row.request_id.timestamp(), query.until.unwrap_or(Timestamp::MAX));
            let has_status = match query.status {
                None => true,
                Some(StatusFilter::Is(status)) => row.outcome.status == status,
                Some(StatusFilter::Failed) => row.outcome.status != 200,
            };
            (query.since..until).contains(&second)
                && has_status
                && query.key.is_none_or(|key| row.key == key)
                && query.person.is_none_or(|person| row.owner == Some(person))
                && query.min_latency.is_none_or(|least| row.timings.total >= least)
        };
        let mut expected: Vec<_> = world.rows.iter().filter(is_found).map(|row| row.request_id).collect();
        expected.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        expected.dedup();
        let found = world.store.usage().requests(&operator, &query).await.unwrap();
        assert_eq!(found.iter().map(|row| row.request_id).collect::<Vec<_>>(), expected, "{query:?}");
        let few = RequestQuery { limit: 7, ..query.clone() };
        let page = world.store.usage().search_requests(&operator, &few).await.unwrap();
        assert_eq!(page.rows, found[..found.len().min(7)], "{query:?}");
    }
}

async fn lines_of_the_audit_log_are_found_by_any_part(database: TestDatabase) {
    let store = database.open().await;
    let (_, operator) = (account(&store, "ada").await, Viewer::operator());
    let found = async |query: AuditQuery| {
        let query = AuditQuery { limit: 100, ..query };
        let page = store.audit_log().search(operator.admin().unwrap(), &query).await.unwrap();
        assert_eq!(page.searched_to, None);
        page.records.into_iter().map(|line| line.subject.name).collect::<Vec<_>>()
    };
    for name in ["Žižek", "100 %", "a_b"] {
        let new = NewKey { name: KeyName::parse(name).unwrap(), completions: true, expires_at: None, project: None };
        store.keys().create(&operator, new, u64::MAX).await.unwrap();
    }
    let subject = |text: &str| AuditQuery { subject: text.into(), ..AuditQuery::default() };
    for (typed, lines) in [("Ž", 1), ("ižEK", 1), ("100 %", 1), ("%", 1), ("_", 1), ("a_b", 1), ("axb", 0), ("\\", 0)]
    {
        assert_eq!(found(subject(typed)).await.len(), lines, "{typed:?}");
    }
    let what = AuditQuery { action: "CREATED key".into(), ..AuditQuery::default() };
    assert_eq!(found(what.clone()).await.len(), 3);
    assert_eq!(found(AuditQuery { who: "operat".into(), ..what.clone() }).await.len(), 3);
    assert_eq!(found(AuditQuery { who: "ada".into(), ..what.clone() }).await.len(), 0);
    let now = store.now();
    assert_eq!(found(AuditQuery { since: now + Duration::from_secs(60), ..what.clone() }).await.len(), 0);
    assert_eq!(found(AuditQuery { until: Some(now + Duration::from_secs(60)), ..what.clone() }).await.len(), 3);
    assert_eq!(found(AuditQuery { until: Some(now.saturating_sub(Duration::from_secs(60))), ..what }).await.len(), 0);
}
