//! Accounts, sessions and links: who can sign in, and that people see and change only their own data.

use std::time::Duration;

use chat::{KeyId, KeyName, RequestId, Timestamp, TokenUsage};
use store::{
    Access, AccountError, AccountId, AuditQuery, AuditRecord, Entry, Grouping, NewAccount, NewKey, Origin, Outcome,
    Period, PersonName, Proof, RequestQuery, Role, Session, Step, Store, StoreError, Timings, Token, UsageQuery,
    Viewer,
};

use crate::database::TestDatabase;
use crate::on_each_backend;

on_each_backend!(
    a_link_works_once_and_the_first_account_voids_all_setup_links,
    an_invited_administrator_also_voids_setup_links,
    sessions_end_by_sign_out_new_password_disabling_and_reset,
    the_last_administrator_cannot_be_demoted_or_disabled,
    disabling_or_demoting_withdraws_the_links_that_a_person_created,
    the_reset_link_of_a_disabled_account_is_withdrawn,
    a_demoted_administrator_can_no_longer_change_anything,
    developers_see_only_their_own_and_administrators_see_all,
    the_playground_is_one_caller_per_account_and_not_a_listed_key,
    every_change_is_in_the_audit_log,
);

const DAY: Duration = Duration::from_secs(86_400);

pub(crate) struct Fixture {
    pub(crate) store: Store,
    _database: TestDatabase,
}

impl Fixture {
    pub(crate) async fn new(database: TestDatabase) -> Self {
        Self { store: database.open().await, _database: database }
    }

    async fn account(&self, email: &str, role: Role) -> AccountId {
        let operator = Viewer::operator();
        let link = self.store.links().invite(operator.admin().unwrap(), role, email, DAY).await.unwrap();
        self.store.links().use_link(&link, &new(email), "10.0.0.1").await.unwrap()
    }

    async fn session(&self, account: AccountId) -> (Token, Session) {
        let origin = Origin { address: "10.0.0.1".into(), agent: "a browser".into() };
        let begun = self.store.sessions().begin(account, &origin, Proof::Password("hash")).await.unwrap();
        (begun.token, begun.session)
    }

    pub(crate) async fn viewer(&self, email: &str, role: Role) -> Viewer {
        let account = self.account(email, role).await;
        self.session(account).await.1.viewer
    }

    async fn key(&self, viewer: &Viewer, name: &str) -> KeyId {
        let new = NewKey { name: KeyName::parse(name).unwrap(), completions: true, expires_at: None, project: None };
        self.store.keys().create(viewer, new, u64::MAX).await.unwrap().id()
    }
}

async fn audit(store: &Store, viewer: &Viewer, before: Option<u64>, limit: u32) -> Vec<AuditRecord> {
    let query = AuditQuery { before, limit, ..AuditQuery::default() };
    store.audit_log().search(viewer.admin().unwrap(), &query).await.unwrap().records
}

fn new(email: &str) -> NewAccount {
    NewAccount { email: email.parse().unwrap(), name: PersonName::parse(email).unwrap(), password: "hash".into() }
}

async fn a_link_works_once_and_the_first_account_voids_all_setup_links(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let other = store.links().create_setup().await.unwrap().unwrap();
    let link = store.links().create_setup().await.unwrap().unwrap();
    assert!(store.links().find(&other).await.unwrap().is_some(), "a second start does not void the first one's link");
    assert!(store.links().find(&link).await.unwrap().is_some());
    store.links().use_link(&link, &new("ada@example.com"), "10.0.0.1").await.unwrap();
    assert!(store.links().create_setup().await.unwrap().is_none());
    for used_up in [&link, &other] {
        let again = store.links().use_link(used_up, &new("eve@example.com"), "10.0.0.1").await;
        assert!(matches!(again, Err(AccountError::LinkGone)));
    }
    assert_eq!(store.accounts().count().await.unwrap(), 1);

    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    let link = store.links().invite(admin, Role::Developer, "Bob", DAY).await.unwrap();
    let taken = store.links().use_link(&link, &new("Ada@Example.com "), "10.0.0.1").await;
    assert!(matches!(taken, Err(AccountError::EmailTaken)));
    store
        .links()
        .use_link(&link, &new("bob@example.com"), "10.0.0.1")
        .await
        .expect("a failed attempt leaves the link valid");

    let expired = store.links().invite(admin, Role::Admin, "late", Duration::ZERO).await.unwrap();
    assert!(store.links().find(&expired).await.unwrap().is_none());
    let withdrawn = store.links().invite(admin, Role::Admin, "never", DAY).await.unwrap();
    let id = store.links().list(admin).await.unwrap().pop().unwrap().id;
    assert!(store.links().revoke(admin, id).await.unwrap());
    assert!(store.links().find(&withdrawn).await.unwrap().is_none());
}

async fn an_invited_administrator_also_voids_setup_links(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let link = fixture.store.links().create_setup().await.unwrap().unwrap();
    fixture.account("bob@example.com", Role::Developer).await;
    assert!(fixture.store.links().find(&link).await.unwrap().is_some(), "there is no administrator yet");
    fixture.account("ada@example.com", Role::Admin).await;
    assert!(fixture.store.links().find(&link).await.unwrap().is_none());
    assert!(fixture.store.links().use_link(&link, &new("eve@example.com"), "10.0.0.1").await.is_err());
}

async fn sessions_end_by_sign_out_new_password_disabling_and_reset(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let ada = fixture.account("ada@example.com", Role::Admin).await;
    let bob = fixture.account("bob@example.com", Role::Developer).await;
    let (first, session) = fixture.session(ada).await;
    let (second, other) = fixture.session(ada).await;
    let (bobs, bobs_session) = fixture.session(bob).await;
    let lives = async |token: &Token| store.sessions().find(token, "10.0.0.1").await.unwrap().is_some();
    assert!(lives(&first).await && lives(&second).await && lives(&bobs).await);
    assert_eq!(store.sessions().list(&session.viewer).await.unwrap().len(), 2);

    assert!(!store.sessions().end(&bobs_session.viewer, session.id).await.unwrap(), "another person's");
    assert!(store.sessions().end(&session.viewer, other.id).await.unwrap());
    assert!(lives(&first).await && !lives(&second).await);

    let (third, _) = fixture.session(ada).await;
    assert!(!store.accounts().set_password(&session.viewer, session.id, "an old hash", "x").await.unwrap());
    assert!(lives(&third).await, "nothing was changed");
    assert!(store.accounts().set_password(&session.viewer, session.id, "hash", "another hash").await.unwrap());
    assert!(lives(&first).await && !lives(&third).await, "a new password ends the others");

    let admin = session.viewer.admin().unwrap();
    store.accounts().set_access(admin, bob, Access::Disabled { revokes_keys: false }).await.unwrap();
    assert!(!lives(&bobs).await);
    assert!(store.accounts().credentials(&"bob@example.com".parse().unwrap()).await.unwrap().is_none());
    store.accounts().set_access(admin, bob, Access::Enabled).await.unwrap();
    assert!(!lives(&bobs).await, "it stays ended");

    let (operator, email) = (Viewer::operator(), "ada@example.com".parse().unwrap());
    assert!(matches!(store.links().create_reset(admin, &email).await, Err(AccountError::OwnAccount)));
    let reset = store.links().create_reset(operator.admin().unwrap(), &email).await.unwrap();
    store.links().reset_password(&reset, "a third hash", "10.0.0.9").await.unwrap();
    assert!(!lives(&first).await);
    assert!(matches!(store.links().reset_password(&reset, "x", "").await, Err(AccountError::LinkGone)));
}

async fn the_last_administrator_cannot_be_demoted_or_disabled(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let ada = fixture.account("ada@example.com", Role::Admin).await;
    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    assert!(matches!(store.accounts().set_role(admin, ada, Role::Developer).await, Err(AccountError::LastAdmin)));
    assert!(matches!(
        store.accounts().set_access(admin, ada, Access::Disabled { revokes_keys: false }).await,
        Err(AccountError::LastAdmin)
    ));
    assert_eq!(store.accounts().list(admin).await.unwrap()[0].role, Role::Admin);
    let bob = fixture.account("bob@example.com", Role::Admin).await;
    store.accounts().set_role(admin, ada, Role::Developer).await.unwrap();
    assert!(matches!(
        store.accounts().set_access(admin, bob, Access::Disabled { revokes_keys: false }).await,
        Err(AccountError::LastAdmin)
    ));
}

async fn disabling_or_demoting_withdraws_the_links_that_a_person_created(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let (operator, ada) = (Viewer::operator(), fixture.viewer("ada@example.com", Role::Admin).await);
    let (admin, mallory_id) = (ada.admin().unwrap(), fixture.account("mallory@example.com", Role::Admin).await);
    let set_access =
        async |access| store.accounts().set_access(admin, mallory_id, access).await.unwrap().withdrawn_links;
    let set_role = async |role| store.accounts().set_role(admin, mallory_id, role).await.unwrap().withdrawn_links;
    for is_disabled in [true, false] {
        let mallory = fixture.session(mallory_id).await.1.viewer;
        let invitation =
            store.links().invite(mallory.admin().unwrap(), Role::Admin, "my second self", DAY).await.unwrap();
        let reset = store.links().create_reset(mallory.admin().unwrap(), &"ada@example.com".parse().unwrap()).await;
        let (reset, kept) = (reset.unwrap(), store.links().invite(admin, Role::Developer, "Bob", DAY).await.unwrap());
        assert!(store.links().find(&invitation).await.unwrap().is_some());
        store.links().invite(mallory.admin().unwrap(), Role::Admin, "expired", Duration::ZERO).await.unwrap();

        assert_eq!(
            if is_disabled {
                set_access(Access::Disabled { revokes_keys: false }).await
            } else {
                set_role(Role::Developer).await
            },
            2
        );
        let used = store.links().use_link(&invitation, &new("eve@example.com"), "10.0.0.1").await;
        assert!(matches!(used, Err(AccountError::LinkGone)), "{used:?}");
        assert!(matches!(store.links().reset_password(&reset, "x", "").await, Err(AccountError::LinkGone)));
        assert!(store.links().find(&kept).await.unwrap().is_some(), "another person's");

        assert_eq!(if is_disabled { set_access(Access::Enabled).await } else { set_role(Role::Admin).await }, 0);
        assert!(store.links().find(&invitation).await.unwrap().is_none(), "it stays ended");
    }
    let lines = audit(store, &operator, None, 100).await;
    let withdrawn: Vec<_> = lines.iter().filter(|line| line.action == "withdrew-link").collect();
    assert_eq!(withdrawn.len(), 4);
    assert!(withdrawn.iter().all(|line| line.who == "ada@example.com"), "{withdrawn:?}");
}

async fn the_reset_link_of_a_disabled_account_is_withdrawn(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let operator = Viewer::operator();
    let (admin, email) = (operator.admin().unwrap(), "bob@example.com".parse().unwrap());
    let bob = fixture.account("bob@example.com", Role::Developer).await;
    fixture.account("ada@example.com", Role::Admin).await;
    let before = store.links().create_reset(admin, &email).await.unwrap();
    assert_eq!(
        store
            .accounts()
            .set_access(admin, bob, Access::Disabled { revokes_keys: false })
            .await
            .unwrap()
            .withdrawn_links,
        1
    );
    assert!(matches!(store.links().reset_password(&before, "x", "").await, Err(AccountError::LinkGone)));
    let during = store.links().create_reset(admin, &email).await.unwrap();
    assert!(store.links().find(&during).await.unwrap().is_none(), "not while the account is disabled");
    store.accounts().set_role(admin, bob, Role::Developer).await.unwrap();
    store.accounts().set_access(admin, bob, Access::Enabled).await.unwrap();
    assert!(store.links().find(&before).await.unwrap().is_none());
    store.links().reset_password(&during, "x", "").await.unwrap();
}

/// A request that began before the demotion must not undo it.
async fn a_demoted_administrator_can_no_longer_change_anything(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    fixture.account("ada@example.com", Role::Admin).await;
    let account = fixture.account("mallory@example.com", Role::Admin).await;
    let mallory = fixture.session(account).await.1.viewer;
    let (operator, late) = (Viewer::operator(), mallory.admin().unwrap());
    let admin = operator.admin().unwrap();
    store.links().invite(admin, Role::Developer, "Bob", DAY).await.unwrap();
    let link = store.links().list(admin).await.unwrap().pop().unwrap().id;
    for is_disabled in [true, false] {
        match is_disabled {
            true => drop(
                store.accounts().set_access(admin, account, Access::Disabled { revokes_keys: false }).await.unwrap(),
            ),
            false => drop(store.accounts().set_role(admin, account, Role::Developer).await.unwrap()),
        }
        let is_declined =
            |error: Option<AccountError>| matches!(error, Some(AccountError::Store(StoreError::SessionEnded)));
        assert!(is_declined(store.links().invite(late, Role::Admin, "me", DAY).await.err()));
        assert!(is_declined(store.links().create_reset(late, &"ada@example.com".parse().unwrap()).await.err()));
        assert!(is_declined(store.accounts().set_role(late, account, Role::Admin).await.err()));
        assert!(is_declined(store.accounts().set_access(late, account, Access::Enabled).await.err()));
        assert!(is_declined(store.links().revoke(late, link).await.err()));
        store.accounts().set_access(admin, account, Access::Enabled).await.unwrap();
    }
    assert_eq!(store.links().list(admin).await.unwrap().len(), 1);
}

async fn developers_see_only_their_own_and_administrators_see_all(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let admin = fixture.viewer("admin@example.com", Role::Admin).await;
    let ada = fixture.viewer("ada@example.com", Role::Developer).await;
    let bob = fixture.viewer("bob@example.com", Role::Developer).await;
    assert!(ada.admin().is_none() && admin.admin().is_some());
    let (adas, bobs) = (fixture.key(&ada, "Ada's").await, fixture.key(&bob, "Bob's").await);
    let made_outside = fixture.key(&Viewer::operator(), "operator's").await;

    let (ledger, writer) = store.start_ledger(DAY).unwrap();
    let mut ids = Vec::new();
    for (key, viewer, count) in [(adas, Some(&ada), 3), (bobs, Some(&bob), 2), (made_outside, None, 1)] {
        for _ in 0..count {
            let owner = viewer.and_then(Viewer::account).map(|account| account.id);
            let entry = Entry {
                request_id: RequestId::now(),
                key,
                owner,
                project: None,
                outcome: Outcome { status: 200, code: None },
                usage: TokenUsage { prompt: Some(5), completion: None, total: None },
                timings: Timings::default(),
                grounding: None,
                inference: Default::default(),
            };
            ids.push((key, entry.request_id));
            ledger.record(entry, None).await.unwrap();
        }
    }
    writer.stop();

    for (viewer, visible) in [(&ada, vec![adas]), (&bob, vec![bobs]), (&admin, vec![adas, bobs, made_outside])] {
        let name = &viewer.account().unwrap().name;
        let seen: Vec<_> = store.keys().list(viewer).await.unwrap().into_iter().map(|key| key.id).collect();
        assert_eq!(seen.len(), visible.len(), "{name}");
        assert!(visible.iter().all(|key| seen.contains(key)), "{name}");

        let own = ids.iter().filter(|(key, _)| visible.contains(key)).count();
        let query = UsageQuery {
            period: Period::since(Timestamp::default()),
            key: None,
            step: Step::Hour,
            person: None,
            group: Some(Grouping::Key),
        };
        let report = store.usage().report(viewer, &query).await.unwrap().unwrap();
        assert_eq!(report.totals.requests, own as u64, "{name}");
        assert_eq!(report.groups.iter().map(|usage| usage.figures.requests).sum::<u64>(), own as u64, "{name}");
        let everything = RequestQuery { limit: 100, ..RequestQuery::default() };
        assert_eq!(store.usage().requests(viewer, &everything).await.unwrap().len(), own, "{name}");

        for (key, id) in &ids {
            let may = visible.contains(key);
            assert_eq!(store.usage().request(viewer, *id).await.unwrap().is_some(), may, "{name}");
            assert_eq!(store.keys().find(viewer, *key).await.unwrap().is_some(), may, "{name}");
            let of_key = UsageQuery { key: Some(*key), ..query };
            assert_eq!(store.usage().report(viewer, &of_key).await.unwrap().is_some(), may, "{name}");
            let of_key = RequestQuery { key: Some(*key), ..everything.clone() };
            let count = ids.iter().filter(|(other, _)| other == key).count();
            assert_eq!(
                store.usage().requests(viewer, &of_key).await.unwrap().len(),
                if may { count } else { 0 },
                "{name}"
            );
        }
    }
    assert!(!store.keys().rename(&bob, adas, &KeyName::parse("mine").unwrap()).await.unwrap());
    assert!(store.keys().revoke(&bob, adas).await.unwrap().is_none());
    assert_eq!(store.keys().find(&ada, adas).await.unwrap().unwrap().name, "Ada's");
    assert!(store.keys().revoke(&ada, adas).await.unwrap().is_some());
}

async fn the_playground_is_one_caller_per_account_and_not_a_listed_key(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let ada = fixture.viewer("ada@example.com", Role::Developer).await;
    let first = store.keys().playground_caller(&ada).await.unwrap().unwrap();
    let second = store.keys().playground_caller(&ada).await.unwrap().unwrap();
    assert_eq!((first.key(), first.owner()), (second.key(), ada.account().map(|account| account.id)));
    assert!(first.may_complete());
    assert!(store.keys().list(&ada).await.unwrap().is_empty());
    assert!(store.keys().revoke(&ada, first.key()).await.unwrap().is_none());
    assert!(store.keys().playground_caller(&Viewer::operator()).await.unwrap().is_none());
}

async fn every_change_is_in_the_audit_log(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let ada = fixture.viewer("ada@example.com", Role::Admin).await;
    let key = fixture.key(&ada, "K").await;
    store.keys().rename(&ada, key, &KeyName::parse("L").unwrap()).await.unwrap();
    store.keys().revoke(&ada, key).await.unwrap();
    store.keys().revoke(&ada, key).await.unwrap();
    let lines = audit(store, &ada, None, 100).await;
    let actions: Vec<_> =
        lines.iter().rev().map(|line| format!("{} {} {}", line.who, line.action, line.subject.name)).collect();
    assert_eq!(
        actions,
        [
            "operator invited ada@example.com",
            "ada@example.com joined ada@example.com",
            "ada@example.com signed-in ada@example.com",
            "ada@example.com created-key K",
            "ada@example.com renamed-key L",
            "ada@example.com revoked-key L",
        ],
    );
    assert_eq!((lines[0].subject.id.as_str(), lines[1].details.as_str()), (key.as_str(), r#"{"from":"K"}"#));
    assert_eq!((lines[0].address.as_str(), lines[5].address.as_str()), ("10.0.0.1", "command line"));
    let older = audit(store, &ada, Some(lines[1].number), 2).await;
    assert_eq!(older.iter().map(|line| line.number).collect::<Vec<_>>(), [lines[2].number, lines[3].number]);
}
