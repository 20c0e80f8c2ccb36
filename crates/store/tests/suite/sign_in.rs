//! Sign-in: identity providers, second factors, challenges, and failure counts that replicas share.

use std::time::Duration;

use store::{
    Access, AccountError, AccountId, ChallengePurpose, CodeTry, Credentials, NewAccount, Origin, PersonName, Proof,
    ProvidedPerson, ProvidedSignInError, ProviderRefusal, RecoveryCode, Role, SecondFactorCode, SignInError,
    SignInMethod, StartedSession, Store, Token, UsedPasskey, Viewer,
};

use crate::database::TestDatabase;
use crate::on_each_backend;

on_each_backend!(
    a_provided_person_keeps_their_account_and_follows_their_groups,
    the_last_administrator_keeps_the_role,
    credentials_of_an_account_end_when_the_provider_takes_it_over,
    an_account_belongs_to_one_person_of_the_provider,
    the_first_factor_ends_sessions_that_began_without_one,
    links_end_with_their_maker_and_set_up_with_the_first_administrator,
    a_code_is_used_once_and_codes_end_with_the_last_factor,
    a_challenge_is_used_up_and_few_are_kept,
    a_session_begins_only_while_the_verified_credentials_are_valid,
    codes_are_counted_before_they_are_checked,
    a_passkey_must_exist_and_answers_a_challenge_once,
    failures_are_shared_by_replicas,
    changes_that_could_take_over_an_account_need_a_confirmation,
    a_deleted_person_can_return_when_an_administrator_allows_it,
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
        authenticated_at: None,
    }
}

async fn account_names(store: &Store) -> Vec<String> {
    let operator = Viewer::operator();
    let accounts = store.accounts().list(operator.admin().unwrap()).await.unwrap();
    let mut names: Vec<_> = accounts.iter().map(|account| format!("{} {}", account.email, account.role)).collect();
    names.sort(); // both may have been created in one millisecond
    names
}

async fn a_provided_person_keeps_their_account_and_follows_their_groups(database: TestDatabase) {
    let store = database.open().await;
    store.provider_accounts().sign_in(&person("1", "boss@example.com", Some(Role::Admin)), &origin()).await.unwrap();
    let ada = person("2", "ada@example.com", Some(Role::Developer));
    let first = store.provider_accounts().sign_in(&ada, &origin()).await.unwrap();
    // With a new address she is still the same person, with the same account.
    let moved = ProvidedPerson { email: "ada@example.org".parse().unwrap(), ..ada.clone() };
    let second = store.provider_accounts().sign_in(&moved, &origin()).await.unwrap();
    assert_eq!(first.session.viewer.account().unwrap().id, second.session.viewer.account().unwrap().id);
    assert_eq!(account_names(&store).await, ["ada@example.com developer", "boss@example.com admin"]);
    // Another role ends the sessions from before.
    let promoted = ProvidedPerson { role: Some(Role::Admin), ..ada.clone() };
    let third = store.provider_accounts().sign_in(&promoted, &origin()).await.unwrap();
    assert!(store.sessions().find(&first.token, "").await.unwrap().is_none());
    let session = store.sessions().find(&third.token, "").await.unwrap().unwrap();
    assert!(session.viewer.admin().is_some() && session.method == SignInMethod::Provider);
    // An unverified address gives access to no account.
    for is_email_verified in [None, Some(false)] {
        let other = ProvidedPerson { is_email_verified, ..person("3", "ada@example.com", None) };
        assert!(matches!(
            store.provider_accounts().sign_in(&other, &origin()).await,
            Err(ProvidedSignInError::Refused(ProviderRefusal::EmailTaken))
        ));
    }
    let unverified = ProvidedPerson { is_email_verified: Some(false), ..person("3", "eve@example.com", None) };
    assert!(matches!(
        store.provider_accounts().sign_in(&unverified, &origin()).await,
        Err(ProvidedSignInError::Refused(ProviderRefusal::UnverifiedEmail))
    ));

    let issuer = "https://login.example.com";
    assert_eq!(store.provider_accounts().end_sessions(issuer, Some("2"), Some("another"), "").await.unwrap(), 0);
    assert_eq!(store.provider_accounts().end_sessions(issuer, Some("1"), Some("session of 2"), "").await.unwrap(), 0);
    assert_eq!(store.provider_accounts().end_sessions(issuer, None, Some("another"), "").await.unwrap(), 0);
    assert_eq!(
        store.provider_accounts().end_sessions(issuer, None, Some("session of 2"), "").await.unwrap(),
        1,
        "by its name"
    );
    let nameless = ProvidedPerson { session: None, ..promoted.clone() };
    let nameless = store.provider_accounts().sign_in(&nameless, &origin()).await.unwrap();
    assert_eq!(store.provider_accounts().end_sessions(issuer, None, Some("session of 2"), "").await.unwrap(), 0);
    assert_eq!(store.provider_accounts().end_sessions(issuer, Some("2"), Some("session of 2"), "").await.unwrap(), 1);
    assert!(store.sessions().find(&nameless.token, "").await.unwrap().is_none(), "it may be the one that is meant");
    assert!(store.sessions().find(&third.token, "").await.unwrap().is_none());
    store.provider_accounts().sign_in(&promoted, &origin()).await.unwrap();
    store.provider_accounts().sign_in(&promoted, &origin()).await.unwrap();
    assert_eq!(store.provider_accounts().end_sessions(issuer, Some("2"), None, "").await.unwrap(), 2);
}

async fn the_last_administrator_keeps_the_role(database: TestDatabase) {
    let store = database.open().await;
    store.provider_accounts().sign_in(&person("1", "boss@example.com", Some(Role::Admin)), &origin()).await.unwrap();
    let demoted = store
        .provider_accounts()
        .sign_in(&person("1", "boss@example.com", Some(Role::Developer)), &origin())
        .await
        .unwrap();
    assert!(demoted.session.viewer.admin().is_some());
    assert!(store.links().create_setup().await.unwrap().is_none());
}

/// Creates an account through an invitation by the operator.
async fn join(store: &Store, email: &str, role: Role) -> AccountId {
    let operator = Viewer::operator();
    let link = store.links().invite(operator.admin().unwrap(), role, "", Duration::from_secs(60)).await.unwrap();
    let name = PersonName::parse("Ada").unwrap();
    let new = NewAccount { email: email.parse().unwrap(), name, password: "hash".into() };
    store.links().use_link(&link, &new, "").await.unwrap()
}

/// An invited person can type any address, which need not be theirs.
async fn credentials_of_an_account_end_when_the_provider_takes_it_over(database: TestDatabase) {
    let store = database.open().await;
    let boss = "boss@example.com".parse().unwrap();
    let account = join(&store, "boss@example.com", Role::Developer).await;
    let begun = store.sessions().begin(account, &origin(), Proof::Password("hash")).await.unwrap();
    let (viewer, id) = (&begun.session.viewer, begun.session.id);
    assert!(store.second_factors().add_passkey(viewer, id, "ff00", "Mallory's", "{}").await.unwrap());
    let operator = Viewer::operator();
    let reset = store.links().create_reset(operator.admin().unwrap(), &boss).await.unwrap();
    let challenge = store.sign_ins().begin_second_step(&verified(account), "").await.unwrap().unwrap();

    let connected = store
        .provider_accounts()
        .sign_in(&person("1", "boss@example.com", Some(Role::Admin)), &origin())
        .await
        .unwrap();
    assert_eq!(connected.session.viewer.account().unwrap().id, account);
    assert!(connected.session.viewer.admin().is_some());
    assert!(store.accounts().credentials(&boss).await.unwrap().is_none());
    assert!(store.second_factors().passkey("ff00").await.unwrap().is_none());
    assert!(store.sessions().find(&begun.token, "").await.unwrap().is_none());
    assert!(store.links().find(&reset).await.unwrap().is_none());
    assert!(store.sign_ins().challenge(ChallengePurpose::SecondFactor, &challenge).await.unwrap().is_none());
    assert!(store.sessions().find(&connected.token, "").await.unwrap().is_some());
}

async fn an_account_belongs_to_one_person_of_the_provider(database: TestDatabase) {
    let store = database.open().await;
    let ada = store.provider_accounts().sign_in(&person("1", "ada@example.com", None), &origin()).await.unwrap();
    // She has left, and the provider has given her address to another person.
    let newcomer = person("2", "ada@example.com", None);
    assert!(matches!(
        store.provider_accounts().sign_in(&newcomer, &origin()).await,
        Err(ProvidedSignInError::Refused(ProviderRefusal::ConnectedElsewhere))
    ));
    let elsewhere = ProvidedPerson { issuer: "https://other.example.com".into(), ..newcomer.clone() };
    let id = ada.session.viewer.account().unwrap().id;
    assert_eq!(
        store.provider_accounts().sign_in(&elsewhere, &origin()).await.unwrap().session.viewer.account().unwrap().id,
        id
    );

    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    assert_eq!(store.provider_accounts().disconnect(admin, Some(id)).await.unwrap(), 2);
    assert!(store.sessions().find(&ada.token, "").await.unwrap().is_none());
    store.provider_accounts().sign_in(&newcomer, &origin()).await.unwrap();
    store.provider_accounts().sign_in(&person("3", "grace@example.com", None), &origin()).await.unwrap();
    assert_eq!(store.provider_accounts().disconnect(admin, None).await.unwrap(), 2);
    assert_eq!(store.provider_accounts().disconnect(admin, None).await.unwrap(), 0);
}

/// Credentials that were read before the password was verified.
fn verified(account: AccountId) -> Credentials {
    Credentials { account, password: "hash".into(), has_second_factor: true }
}

async fn sign_in(store: &Store, account: AccountId, proof: Proof<'_>) -> Result<StartedSession, SignInError> {
    store.sessions().begin(account, &origin(), proof).await
}

/// Signs in with a password and a code.
async fn sign_in_with(
    store: &Store,
    account: AccountId,
    code: SecondFactorCode<'_>,
) -> Result<StartedSession, SignInError> {
    let challenge = store.sign_ins().begin_second_step(&verified(account), "").await.unwrap().unwrap();
    sign_in(store, account, Proof::Code { challenge: &challenge, code }).await
}

async fn the_first_factor_ends_sessions_that_began_without_one(database: TestDatabase) {
    let store = database.open().await;
    let account = join(&store, "ada@example.com", Role::Developer).await;
    let begin = async || sign_in(&store, account, Proof::Password("hash")).await.unwrap();
    let is_valid = async |token: &Token| store.sessions().find(token, "").await.unwrap().is_some();
    let (thief, own) = (begin().await, begin().await);
    let codes = RecoveryCode::generate_all().unwrap();
    store.second_factors().set_authenticator_app(&own.session.viewer, own.session.id, "KEY", 1, &codes).await.unwrap();
    assert!(!is_valid(&thief.token).await && is_valid(&own.token).await);
    let other = sign_in_with(&store, account, SecondFactorCode::Recovery(&codes[0])).await.unwrap();
    assert!(
        store
            .second_factors()
            .add_passkey(&own.session.viewer, own.session.id, "ff00", "My phone", "{}")
            .await
            .unwrap()
    );
    assert!(is_valid(&other.token).await, "this session began with a factor");
}

async fn links_end_with_their_maker_and_set_up_with_the_first_administrator(database: TestDatabase) {
    let store = database.open().await;
    let set_up = store.links().create_setup().await.unwrap().unwrap();
    let (ada, operator) = (join(&store, "ada@example.com", Role::Developer).await, Viewer::operator());
    assert!(store.links().find(&set_up).await.unwrap().is_some());
    store.accounts().set_role(operator.admin().unwrap(), ada, Role::Admin).await.unwrap();
    assert!(store.links().find(&set_up).await.unwrap().is_none(), "there is an administrator");

    join(&store, "boss@example.com", Role::Admin).await;
    let viewer = store.sessions().begin(ada, &origin(), Proof::Password("hash")).await.unwrap().session.viewer;
    let admin = viewer.admin().unwrap();
    let invitation = store.links().invite(admin, Role::Admin, "Eve", Duration::from_secs(60)).await.unwrap();
    let (name, email) = (PersonName::parse("Ada").unwrap(), "ada@example.org".parse().unwrap());
    store.accounts().set_profile(admin, ada, &name, &email).await.unwrap();
    assert!(store.links().find(&invitation).await.unwrap().is_some());
    store
        .accounts()
        .set_access(operator.admin().unwrap(), ada, Access::Disabled { revokes_keys: false })
        .await
        .unwrap();
    assert!(store.links().find(&invitation).await.unwrap().is_none(), "although its maker's address has changed");
}

async fn a_code_is_used_once_and_codes_end_with_the_last_factor(database: TestDatabase) {
    let store = database.open().await;
    let account = join(&store, "ada@example.com", Role::Developer).await;
    let begun = sign_in(&store, account, Proof::Password("hash")).await.unwrap();
    let (viewer, session) = (&begun.session.viewer, begun.session.id);
    let codes = RecoveryCode::generate_all().unwrap();
    assert!(
        store.second_factors().set_authenticator_app(viewer, session, "KEY", 100, &codes).await.unwrap(),
        "the codes are new"
    );
    assert!(!store.second_factors().set_authenticator_app(viewer, session, "KEY", 100, &codes).await.unwrap());
    let is_accepted = async |code| match sign_in_with(&store, account, code).await {
        Ok(_) => true,
        Err(SignInError::WrongCode) => false,
        Err(error) => panic!("{error}"),
    };
    for (step, accepted) in [(100, false), (99, false), (101, true), (101, false), (103, true), (102, false)] {
        assert_eq!(is_accepted(SecondFactorCode::App { key: "KEY", step }).await, accepted, "{step}");
    }
    assert!(!is_accepted(SecondFactorCode::App { key: "ANOTHER", step: 104 }).await, "the code of a replaced app");
    assert!(is_accepted(SecondFactorCode::Recovery(&codes[0])).await);
    assert!(!is_accepted(SecondFactorCode::Recovery(&codes[0])).await);
    assert_eq!(store.second_factors().of(account).await.unwrap().recovery_codes, 9);
    assert!(store.second_factors().add_passkey(viewer, session, "ff00", "My phone", "{}").await.unwrap());
    assert!(!store.second_factors().add_passkey(viewer, session, "ff00", "Twice", "{}").await.unwrap());
    assert!(store.second_factors().remove_authenticator_app(viewer).await.unwrap());
    assert!(is_accepted(SecondFactorCode::Recovery(&codes[1])).await, "there is a passkey");
    assert!(store.second_factors().remove_passkey(viewer, "ff00").await.unwrap());
    assert!(!is_accepted(SecondFactorCode::Recovery(&codes[2])).await, "a recovery code alone is not a factor");
    assert!(store.second_factors().of(account).await.unwrap().is_empty());
}

async fn a_session_begins_only_while_the_verified_credentials_are_valid(database: TestDatabase) {
    let store = database.open().await;
    let (operator, email) = (Viewer::operator(), "ada@example.com".parse().unwrap());
    let (admin, account) = (operator.admin().unwrap(), join(&store, "ada@example.com", Role::Developer).await);
    join(&store, "boss@example.com", Role::Admin).await;
    let is_outdated = |begun: Result<StartedSession, SignInError>| matches!(begun, Err(SignInError::Outdated));
    let own = sign_in(&store, account, Proof::Password("hash")).await.unwrap().session;

    store.accounts().set_access(admin, account, Access::Disabled { revokes_keys: false }).await.unwrap();
    assert!(is_outdated(sign_in(&store, account, Proof::Password("hash")).await));
    store.accounts().set_access(admin, account, Access::Enabled).await.unwrap();

    // The old password was verified, and then the reset link was used.
    let challenge = store.sign_ins().begin_second_step(&verified(account), "").await.unwrap().unwrap();
    let reset = store.links().create_reset(admin, &email).await.unwrap();
    store.links().reset_password(&reset, "new hash", "").await.unwrap();
    assert!(is_outdated(sign_in(&store, account, Proof::Password("hash")).await));
    assert!(store.sign_ins().begin_second_step(&verified(account), "").await.unwrap().is_none());
    assert!(
        store.accounts().set_password(&own.viewer, own.id, "hash", "the thief's").await.is_err(),
        "the session is over"
    );
    assert_eq!(store.accounts().credentials(&email).await.unwrap().unwrap().password, "new hash");

    // A factor was added while the password was verified.
    let own = sign_in(&store, account, Proof::Password("new hash")).await.unwrap().session;
    let codes = RecoveryCode::generate_all().unwrap();
    store.second_factors().set_authenticator_app(&own.viewer, own.id, "KEY", 1, &codes).await.unwrap();
    assert!(is_outdated(sign_in(&store, account, Proof::Password("new hash")).await));
    let code = SecondFactorCode::Recovery(&codes[0]);
    assert!(is_outdated(sign_in(&store, account, Proof::Code { challenge: &challenge, code }).await), "it was deleted");

    // One password, one session.
    let verified = Credentials { password: "new hash".into(), ..verified(account) };
    let challenge = store.sign_ins().begin_second_step(&verified, "").await.unwrap().unwrap();
    sign_in(&store, account, Proof::Code { challenge: &challenge, code }).await.unwrap();
    let code = SecondFactorCode::Recovery(&codes[1]);
    assert!(is_outdated(sign_in(&store, account, Proof::Code { challenge: &challenge, code }).await));
    assert_eq!(store.second_factors().of(account).await.unwrap().recovery_codes, 9, "the code was not used up");
}

async fn codes_are_counted_before_they_are_checked(database: TestDatabase) {
    let store = database.open().await;
    let account = join(&store, "ada@example.com", Role::Developer).await;
    let own = sign_in(&store, account, Proof::Password("hash")).await.unwrap().session;
    store
        .second_factors()
        .set_authenticator_app(&own.viewer, own.id, "KEY", 1, &RecoveryCode::generate_all().unwrap())
        .await
        .unwrap();
    let mut challenges = Vec::new();
    for _ in 0..20 {
        challenges.push(store.sign_ins().begin_second_step(&verified(account), "").await.unwrap().unwrap());
    }
    let mut counted = 0;
    for challenge in &challenges {
        counted += usize::from(store.sign_ins().count_code(challenge, true).await.unwrap() == CodeTry::Counted);
    }
    assert_eq!(counted, 11);
    assert_eq!(store.sign_ins().count_code(&challenges[0], false).await.unwrap(), CodeTry::Counted, "a recovery code");
    // A right code does not count as wrong.
    let proof = Proof::Code { challenge: &challenges[1], code: SecondFactorCode::App { key: "KEY", step: 2 } };
    sign_in(&store, account, proof).await.unwrap();
    assert_eq!(store.sign_ins().count_code(&challenges[2], true).await.unwrap(), CodeTry::Counted);
    assert_eq!(store.sign_ins().count_code(&challenges[2], true).await.unwrap(), CodeTry::TooManyWrong);
    for expected in [CodeTry::Counted, CodeTry::Counted, CodeTry::ChallengeGone] {
        assert_eq!(store.sign_ins().count_code(&challenges[2], false).await.unwrap(), expected);
    }
}

async fn a_passkey_must_exist_and_answers_a_challenge_once(database: TestDatabase) {
    let store = database.open().await;
    let account = join(&store, "ada@example.com", Role::Developer).await;
    let own = sign_in(&store, account, Proof::Password("hash")).await.unwrap().session;
    assert!(store.second_factors().add_passkey(&own.viewer, own.id, "ff00", "My phone", "{}").await.unwrap());
    let use_for = async |challenge: &str| {
        let used = UsedPasskey { id: "ff00".into(), credential: "used".into(), challenge: challenge.into() };
        sign_in(&store, account, Proof::Passkey(&used)).await.is_ok()
    };
    assert!(use_for("one").await && !use_for("one").await && use_for("two").await);
    assert_eq!(store.second_factors().passkey("ff00").await.unwrap().unwrap().credential, "used");
    assert!(store.second_factors().remove_passkey(&own.viewer, "ff00").await.unwrap());
    assert!(!use_for("three").await);
    let other = database.open().await;
    assert_eq!(
        store.sign_ins().sign_in_secret().await.unwrap().reveal(),
        other.sign_ins().sign_in_secret().await.unwrap().reveal()
    );
}

async fn a_challenge_is_used_up_and_few_are_kept(database: TestDatabase) {
    let store = database.open().await;
    let (adding, second) = (ChallengePurpose::AddPasskey, ChallengePurpose::SecondFactor);
    let ada = join(&store, "ada@example.com", Role::Developer).await;
    let token = store.sign_ins().create_challenge(adding, ada, "state").await.unwrap();
    assert!(store.sign_ins().take_challenge(second, &token).await.unwrap().is_none(), "it has another purpose");
    assert_eq!(store.sign_ins().take_challenge(adding, &token).await.unwrap().unwrap().body, "state");
    assert!(store.sign_ins().take_challenge(adding, &token).await.unwrap().is_none());

    let begin = async || store.sign_ins().begin_second_step(&verified(ada), "").await.unwrap().unwrap();
    let first = begin().await;
    for _ in 0..40 {
        store.sign_ins().create_challenge(adding, ada, "").await.unwrap();
    }
    assert!(store.sign_ins().challenge(second, &first).await.unwrap().is_some());
    for _ in 0..32 {
        begin().await;
    }
    assert!(store.sign_ins().challenge(second, &first).await.unwrap().is_none(), "newer challenges have replaced it");

    // A new password ends challenges that were begun with the previous one.
    let hers = begin().await;
    let begun = sign_in(&store, ada, Proof::Password("hash")).await.unwrap().session;
    assert!(store.accounts().set_password(&begun.viewer, begun.id, "hash", "another hash").await.unwrap());
    assert!(store.sign_ins().challenge(second, &hers).await.unwrap().is_none());
}

async fn failures_are_shared_by_replicas(database: TestDatabase) {
    let (one, other) = (database.open().await, database.open().await);
    for _ in 0..3 {
        one.sign_ins().add_failure(&["network a", "account b"]).await.unwrap();
        other.sign_ins().add_failure(&["network c", "account b"]).await.unwrap();
    }
    let failures = async |store: &Store, subjects: &[&str]| store.sign_ins().failures(subjects).await.unwrap().round();
    assert_eq!(failures(&other, &["network a"]).await, 3.0);
    assert_eq!(failures(&one, &["network x", "account b"]).await, 6.0);
    assert_eq!(failures(&one, &["network x"]).await, 0.0);
    // Two of the failures belong to one account.
    for _ in 0..2 {
        one.sign_ins().add_failure(&["network a", "own part"]).await.unwrap();
    }
    other.sign_ins().forget_failures("own part", "network a").await.unwrap();
    assert_eq!(failures(&one, &["network a"]).await, 3.0);
    assert_eq!(failures(&one, &["own part"]).await, 0.0);
}

async fn changes_that_could_take_over_an_account_need_a_confirmation(database: TestDatabase) {
    let store = database.open().await;
    let (ada, bob) =
        (join(&store, "ada@example.com", Role::Admin).await, join(&store, "bob@example.com", Role::Developer).await);
    let fresh = sign_in(&store, ada, Proof::Password("hash")).await.unwrap().session;
    store.accounts().set_role(fresh.viewer.admin().unwrap(), bob, Role::Developer).await.unwrap();
    let codes = RecoveryCode::generate_all().unwrap();
    store.second_factors().set_authenticator_app(&fresh.viewer, fresh.id, "KEY", 1, &codes).await.unwrap();

    let session = sign_in_with(&store, ada, SecondFactorCode::Recovery(&codes[0])).await.unwrap().session;
    let (viewer, admin) = (&session.viewer, session.viewer.admin().unwrap());
    let is_declined =
        |error: Option<AccountError>| matches!(error, Some(AccountError::Store(store::StoreError::NotConfirmed)));
    let bobs = "bob@example.com".parse().unwrap();
    assert!(is_declined(store.accounts().set_role(admin, bob, Role::Admin).await.err()));
    assert!(is_declined(store.links().create_reset(admin, &bobs).await.err()));
    assert!(is_declined(store.second_factors().reset(admin, bob).await.err()));
    assert!(is_declined(store.second_factors().require(admin, false).await.err()));
    assert!(is_declined(store.links().invite(admin, Role::Admin, "Eve", Duration::from_secs(60)).await.err()));
    store.links().invite(admin, Role::Developer, "Eve", Duration::from_secs(60)).await.unwrap();

    assert!(!store.sign_ins().confirm_with_password(viewer, "an old hash").await.unwrap());
    assert!(is_declined(store.accounts().set_role(admin, bob, Role::Admin).await.err()));
    assert!(store.sign_ins().confirm_with_password(viewer, "hash").await.unwrap());
    store.accounts().set_role(admin, bob, Role::Admin).await.unwrap();
    for own in [
        store.accounts().set_role(admin, ada, Role::Developer).await.err(),
        store.second_factors().reset(admin, ada).await.err(),
        store.links().create_reset(admin, &"ada@example.com".parse().unwrap()).await.err(),
    ] {
        assert!(matches!(own, Some(AccountError::OwnAccount)), "{own:?}");
    }

    // A provider reports when the person entered the password there.
    for (authenticated_at, is_confirmed) in [(None, false), (Some(store.now()), true)] {
        let boss = ProvidedPerson { authenticated_at, ..person("1", "boss@example.com", Some(Role::Admin)) };
        let session = store.provider_accounts().sign_in(&boss, &origin()).await.unwrap().session;
        let changed = store.accounts().set_role(session.viewer.admin().unwrap(), bob, Role::Developer).await;
        assert_eq!(changed.is_ok(), is_confirmed);
    }
}

async fn a_deleted_person_can_return_when_an_administrator_allows_it(database: TestDatabase) {
    let store = database.open().await;
    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    let ada = person("1", "ada@example.com", None);
    let first = store.provider_accounts().sign_in(&ada, &origin()).await.unwrap().session.viewer.account().unwrap().id;
    let grace = join(&store, "grace@example.com", Role::Admin).await;
    join(&store, "boss@example.com", Role::Admin).await;
    store.accounts().delete(admin, first).await.unwrap();
    store.accounts().delete(admin, grace).await.unwrap();
    let renamed = ProvidedPerson { email: "ada@example.org".parse().unwrap(), ..ada.clone() };
    // By the provider's name for her, by her address, and a person who never used the provider before.
    for returning in [&ada, &renamed, &person("2", "ada@example.com", None), &person("3", "grace@example.com", None)] {
        assert!(matches!(
            store.provider_accounts().sign_in(returning, &origin()).await,
            Err(ProvidedSignInError::Refused(ProviderRefusal::Deleted))
        ));
    }
    assert_eq!(store.provider_accounts().deleted_people(admin).await.unwrap().len(), 2);
    assert_eq!(store.provider_accounts().allow_return(admin, first).await.unwrap().as_str(), "ada@example.com");
    assert_eq!(store.provider_accounts().deleted_people(admin).await.unwrap().len(), 1);
    assert_ne!(
        store.provider_accounts().sign_in(&ada, &origin()).await.unwrap().session.viewer.account().unwrap().id,
        first
    );
}
