//! Signing in: people of an identity provider, second factors, challenges, and the failures that replicas share.

use std::time::Duration;

use store::{
    Access, AccountId, ChallengePurpose, NewAccount, Origin, PersonName, ProvidedPerson, ProvidedSignInError,
    RecoveryCode, Role, SignInMethod, Store, Token, Viewer,
};

use crate::database::TestDatabase;
use crate::on_each_backend;

on_each_backend!(
    a_provided_person_keeps_their_account_and_follows_their_groups,
    the_last_administrator_keeps_the_role,
    what_opened_an_account_does_not_open_it_once_the_provider_does,
    an_account_belongs_to_one_person_of_the_provider,
    the_first_factor_ends_sessions_that_began_without_one,
    links_end_with_their_maker_and_set_up_with_the_first_administrator,
    a_code_is_used_once_and_codes_end_with_the_last_factor,
    a_challenge_is_used_up_and_few_are_kept,
    failures_are_shared_by_replicas,
);

fn origin() -> Origin {
    Origin { address: "192.0.2.1".into(), agent: "a test".into() }
}

fn person(subject: &str, email: &str, role: Option<Role>) -> ProvidedPerson {
    ProvidedPerson {
        issuer: "https://login.example.com".into(),
        subject: subject.into(),
        email: email.parse().unwrap(),
        is_email_verified: Some(true),
        name: PersonName::parse("Ada").unwrap(),
        role,
        session: Some(format!("session of {subject}")),
    }
}

async fn account_names(store: &Store) -> Vec<String> {
    let operator = Viewer::operator();
    let accounts = store.accounts(operator.admin().unwrap()).await.unwrap();
    let mut names: Vec<_> = accounts.iter().map(|account| format!("{} {}", account.email, account.role)).collect();
    names.sort(); // both may have been created in one millisecond
    names
}

async fn a_provided_person_keeps_their_account_and_follows_their_groups(database: TestDatabase) {
    let store = database.open().await;
    store.sign_in_provided(&person("1", "boss@example.com", Some(Role::Admin)), &origin()).await.unwrap();
    let ada = person("2", "ada@example.com", Some(Role::Developer));
    let first = store.sign_in_provided(&ada, &origin()).await.unwrap();
    // With another address she is still the same person, and so is her account.
    let moved = ProvidedPerson { email: "ada@example.org".parse().unwrap(), ..ada.clone() };
    let second = store.sign_in_provided(&moved, &origin()).await.unwrap();
    assert_eq!(first.session.viewer.account().unwrap().id, second.session.viewer.account().unwrap().id);
    assert_eq!(account_names(&store).await, ["ada@example.com developer", "boss@example.com admin"]);
    // Another role ends the sessions from before.
    let promoted = ProvidedPerson { role: Some(Role::Admin), ..ada.clone() };
    let third = store.sign_in_provided(&promoted, &origin()).await.unwrap();
    assert!(store.session(&first.token, "").await.unwrap().is_none());
    let session = store.session(&third.token, "").await.unwrap().unwrap();
    assert!(session.viewer.admin().is_some() && session.method == SignInMethod::Provider);
    // Nobody gets an account by an address that is not theirs for sure.
    for is_email_verified in [None, Some(false)] {
        let other = ProvidedPerson { is_email_verified, ..person("3", "ada@example.com", None) };
        assert!(matches!(store.sign_in_provided(&other, &origin()).await, Err(ProvidedSignInError::EmailTaken)));
    }
    let unverified = ProvidedPerson { is_email_verified: Some(false), ..person("3", "eve@example.com", None) };
    assert!(matches!(store.sign_in_provided(&unverified, &origin()).await, Err(ProvidedSignInError::UnverifiedEmail)));

    let issuer = "https://login.example.com";
    assert_eq!(store.end_provided_sessions(issuer, "2", Some("another"), "").await.unwrap(), 0);
    assert_eq!(store.end_provided_sessions(issuer, "1", Some("session of 2"), "").await.unwrap(), 0);
    assert_eq!(store.end_provided_sessions(issuer, "2", Some("session of 2"), "").await.unwrap(), 1);
    assert!(store.session(&third.token, "").await.unwrap().is_none());
    store.sign_in_provided(&promoted, &origin()).await.unwrap();
    store.sign_in_provided(&promoted, &origin()).await.unwrap();
    assert_eq!(store.end_provided_sessions(issuer, "2", None, "").await.unwrap(), 2);
}

async fn the_last_administrator_keeps_the_role(database: TestDatabase) {
    let store = database.open().await;
    store.sign_in_provided(&person("1", "boss@example.com", Some(Role::Admin)), &origin()).await.unwrap();
    let demoted =
        store.sign_in_provided(&person("1", "boss@example.com", Some(Role::Developer)), &origin()).await.unwrap();
    assert!(demoted.session.viewer.admin().is_some());
    assert!(store.create_setup_link().await.unwrap().is_none());
}

/// By an invitation of the operator.
async fn join(store: &Store, email: &str, role: Role) -> AccountId {
    let operator = Viewer::operator();
    let link = store.invite(operator.admin().unwrap(), role, "", Duration::from_secs(60)).await.unwrap();
    let name = PersonName::parse("Ada").unwrap();
    let new = NewAccount { email: email.parse().unwrap(), name, password: "hash".into() };
    store.use_link(&link, &new, "").await.unwrap()
}

/// Whoever is invited types any address. It is not theirs for sure.
async fn what_opened_an_account_does_not_open_it_once_the_provider_does(database: TestDatabase) {
    let store = database.open().await;
    let boss = "boss@example.com".parse().unwrap();
    let account = join(&store, "boss@example.com", Role::Developer).await;
    let begun = store.begin_session(account, &origin(), SignInMethod::Password).await.unwrap().unwrap();
    let (viewer, id) = (&begun.session.viewer, begun.session.id);
    assert!(store.add_passkey(viewer, id, "ff00", "Mallory's", "{}").await.unwrap());
    let operator = Viewer::operator();
    let reset = store.create_reset_link(operator.admin().unwrap(), &boss).await.unwrap();
    let challenge = store.create_challenge(ChallengePurpose::SecondFactor, Some(account), "", "").await.unwrap();

    let connected =
        store.sign_in_provided(&person("1", "boss@example.com", Some(Role::Admin)), &origin()).await.unwrap();
    assert_eq!(connected.session.viewer.account().unwrap().id, account);
    assert!(connected.session.viewer.admin().is_some());
    assert!(store.credentials(&boss).await.unwrap().is_none());
    assert!(store.passkey("ff00").await.unwrap().is_none());
    assert!(store.session(&begun.token, "").await.unwrap().is_none());
    assert!(store.link(&reset).await.unwrap().is_none());
    assert!(store.challenge(ChallengePurpose::SecondFactor, &challenge).await.unwrap().is_none());
    assert!(store.session(&connected.token, "").await.unwrap().is_some());
}

async fn an_account_belongs_to_one_person_of_the_provider(database: TestDatabase) {
    let store = database.open().await;
    let ada = store.sign_in_provided(&person("1", "ada@example.com", None), &origin()).await.unwrap();
    // She has left, and the provider has given her address to somebody else.
    let newcomer = person("2", "ada@example.com", None);
    assert!(matches!(store.sign_in_provided(&newcomer, &origin()).await, Err(ProvidedSignInError::AnotherPerson)));
    let elsewhere = ProvidedPerson { issuer: "https://other.example.com".into(), ..newcomer.clone() };
    let id = ada.session.viewer.account().unwrap().id;
    assert_eq!(store.sign_in_provided(&elsewhere, &origin()).await.unwrap().session.viewer.account().unwrap().id, id);

    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    assert_eq!(store.disconnect_identities(admin, Some(id)).await.unwrap(), 2);
    assert!(store.session(&ada.token, "").await.unwrap().is_none());
    store.sign_in_provided(&newcomer, &origin()).await.unwrap();
    store.sign_in_provided(&person("3", "grace@example.com", None), &origin()).await.unwrap();
    assert_eq!(store.disconnect_identities(admin, None).await.unwrap(), 2);
    assert_eq!(store.disconnect_identities(admin, None).await.unwrap(), 0);
}

async fn the_first_factor_ends_sessions_that_began_without_one(database: TestDatabase) {
    let store = database.open().await;
    let account = join(&store, "ada@example.com", Role::Developer).await;
    let begin = async || store.begin_session(account, &origin(), SignInMethod::Password).await.unwrap().unwrap();
    let is_valid = async |token: &Token| store.session(token, "").await.unwrap().is_some();
    let (thief, own) = (begin().await, begin().await);
    let codes = RecoveryCode::generate_all().unwrap();
    store.set_authenticator_app(&own.session.viewer, own.session.id, "KEY", 1, &codes).await.unwrap();
    assert!(!is_valid(&thief.token).await && is_valid(&own.token).await);
    let other = begin().await;
    assert!(store.add_passkey(&own.session.viewer, own.session.id, "ff00", "My phone", "{}").await.unwrap());
    assert!(is_valid(&other.token).await, "that one began with a factor");
}

async fn links_end_with_their_maker_and_set_up_with_the_first_administrator(database: TestDatabase) {
    let store = database.open().await;
    let set_up = store.create_setup_link().await.unwrap().unwrap();
    let (ada, operator) = (join(&store, "ada@example.com", Role::Developer).await, Viewer::operator());
    assert!(store.link(&set_up).await.unwrap().is_some());
    store.set_role(operator.admin().unwrap(), ada, Role::Admin).await.unwrap();
    assert!(store.link(&set_up).await.unwrap().is_none(), "there is an administrator");

    join(&store, "boss@example.com", Role::Admin).await;
    let viewer = store.begin_session(ada, &origin(), SignInMethod::Password).await.unwrap().unwrap().session.viewer;
    let admin = viewer.admin().unwrap();
    let invitation = store.invite(admin, Role::Admin, "Eve", Duration::from_secs(60)).await.unwrap();
    let (name, email) = (PersonName::parse("Ada").unwrap(), "ada@example.org".parse().unwrap());
    store.set_profile(admin, ada, &name, &email).await.unwrap();
    assert!(store.link(&invitation).await.unwrap().is_some());
    store.set_access(operator.admin().unwrap(), ada, Access::Disabled { revokes_keys: false }).await.unwrap();
    assert!(store.link(&invitation).await.unwrap().is_none(), "whatever address its maker has now");
}

async fn a_code_is_used_once_and_codes_end_with_the_last_factor(database: TestDatabase) {
    let store = database.open().await;
    let begun = store.sign_in_provided(&person("1", "ada@example.com", None), &origin()).await.unwrap();
    let (viewer, account) = (&begun.session.viewer, begun.session.viewer.account().unwrap().id);
    let session = begun.session.id;
    let codes = RecoveryCode::generate_all().unwrap();
    assert!(store.set_authenticator_app(viewer, session, "KEY", 100, &codes).await.unwrap(), "the codes are new");
    assert!(!store.set_authenticator_app(viewer, session, "KEY", 100, &codes).await.unwrap());
    for (step, accepted) in [(100, false), (99, false), (101, true), (101, false), (103, true), (102, false)] {
        assert_eq!(store.use_app_step(account, step).await.unwrap(), accepted, "{step}");
    }
    assert!(store.use_recovery_code(account, &codes[0], "").await.unwrap());
    assert!(!store.use_recovery_code(account, &codes[0], "").await.unwrap());
    assert_eq!(store.second_factors(account).await.unwrap().recovery_codes, 9);
    assert!(store.add_passkey(viewer, session, "ff00", "My phone", "{}").await.unwrap());
    assert!(!store.add_passkey(viewer, session, "ff00", "Twice", "{}").await.unwrap());
    assert!(store.remove_authenticator_app(viewer).await.unwrap());
    assert!(store.use_recovery_code(account, &codes[1], "").await.unwrap(), "there is a passkey");
    assert!(store.remove_passkey(viewer, "ff00").await.unwrap());
    assert!(!store.use_recovery_code(account, &codes[2], "").await.unwrap(), "a code is no factor by itself");
    assert!(store.second_factors(account).await.unwrap().is_empty());
}

async fn a_challenge_is_used_up_and_few_are_kept(database: TestDatabase) {
    let store = database.open().await;
    let (passkey, second) = (ChallengePurpose::Passkey, ChallengePurpose::SecondFactor);
    let token = store.create_challenge(passkey, None, "192.0.2.1", "state").await.unwrap();
    assert!(store.take_challenge(second, &token).await.unwrap().is_none(), "it is for something else");
    assert_eq!(store.take_challenge(passkey, &token).await.unwrap().unwrap().body, "state");
    assert!(store.take_challenge(passkey, &token).await.unwrap().is_none());

    let token = store.create_challenge(second, None, "192.0.2.1", "").await.unwrap();
    for _ in 0..5 {
        assert!(store.try_challenge(second, &token).await.unwrap().is_some());
    }
    assert!(store.try_challenge(second, &token).await.unwrap().is_none());

    let other = store.create_challenge(passkey, None, "198.51.100.1", "").await.unwrap();
    let first = store.create_challenge(passkey, None, "192.0.2.1", "").await.unwrap();
    let ada = join(&store, "ada@example.com", Role::Developer).await;
    let hers = store.create_challenge(second, Some(ada), "192.0.2.1", "").await.unwrap();
    for _ in 0..40 {
        store.create_challenge(passkey, None, "192.0.2.1", "").await.unwrap();
    }
    assert!(store.challenge(second, &hers).await.unwrap().is_some(), "she has typed a password");
    assert!(store.take_challenge(passkey, &first).await.unwrap().is_none(), "the flood was from there");
    assert!(store.take_challenge(passkey, &other).await.unwrap().is_some());
    for _ in 0..32 {
        store.create_challenge(second, Some(ada), "198.51.100.7", "").await.unwrap();
    }
    assert!(store.challenge(second, &hers).await.unwrap().is_none(), "newer ones of hers");

    // Another password ends what was begun with the one before.
    let hers = store.create_challenge(second, Some(ada), "192.0.2.1", "").await.unwrap();
    let begun = store.begin_session(ada, &origin(), SignInMethod::Password).await.unwrap().unwrap().session;
    store.set_password(&begun.viewer, begun.id, "another hash").await.unwrap();
    assert!(store.challenge(second, &hers).await.unwrap().is_none());
}

async fn failures_are_shared_by_replicas(database: TestDatabase) {
    let (one, other) = (database.open().await, database.open().await);
    for _ in 0..3 {
        one.add_sign_in_failure(&["network a", "account b"]).await.unwrap();
        other.add_sign_in_failure(&["network c", "account b"]).await.unwrap();
    }
    let failures = async |store: &Store, subjects: &[&str]| store.sign_in_failures(subjects).await.unwrap().round();
    assert_eq!(failures(&other, &["network a"]).await, 3.0);
    assert_eq!(failures(&one, &["network x", "account b"]).await, 6.0);
    assert_eq!(failures(&one, &["network x"]).await, 0.0);
    other.forget_sign_in_failures("network a").await.unwrap();
    assert_eq!(failures(&one, &["network a", "account b"]).await, 6.0);
    assert_eq!(failures(&one, &["network a"]).await, 0.0);
}
