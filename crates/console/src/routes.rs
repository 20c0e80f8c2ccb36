//! Every path of the console and its handler. A handler that changes something takes a `Form`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use http::{Method, header};
use serde_json::json;
use transport::Response;

use crate::keys::{key, list as key_list, settings as key_settings};
use crate::limits::{form as limit_form, page as limits};
use crate::overview::page as overview;
use crate::page::{
    Anonymous, Console, ConsoleError, ConsoleRequest, ConsoleResponse, ConsoleResult, Cookie, Draft, Fields, Form,
    FormSender, Format, Refusal, SignedIn, assets, error_page, remembered,
};
use crate::people::{account, audit, member, team};
use crate::playground::page as playground;
use crate::sign_in::{confirmation, first_step, links, passkeys, provider, second_factor, second_step};
use crate::usage::{page as usage, prices, requests};

pub(crate) async fn handle(console: &Arc<Console>, api: &api::Worker, mut request: ConsoleRequest) -> Response {
    let result = match AssertUnwindSafe(route(console, api, &mut request)).catch_unwind().await {
        Ok(result) => result,
        Err(_panic) => {
            tracing::error!(path = request.head.uri.path(), "a console handler panicked");
            Err(ConsoleError::Internal)
        }
    };
    let had_message = console.message(&request).is_some();
    let response = match result {
        // A message is shown once.
        Ok(response) if had_message && request.head.method == Method::GET => {
            console.clear_cookie(response, Cookie::Message)
        }
        Ok(response) => response,
        // Scripts read the status instead of following a redirect.
        Err(ConsoleError::SignedOut) if !request.is_json() => first_step::redirect_to_sign_in(console, &request),
        Err(ConsoleError::Refused(refusal)) if request.is_json() => {
            ConsoleResponse::json(json!({ "error": refusal.text }).to_string()).with_status(refusal.status)
        }
        Err(error) => {
            if let ConsoleError::Store(error) = &error {
                tracing::error!(%error, "the console could not reach the database");
            }
            let user = SignedIn::from_request(console, &request).await.ok();
            let page = ConsoleResponse::page(error_page(user.as_ref(), &error)).with_status(error.status());
            match error {
                ConsoleError::Busy => page.with_header(header::RETRY_AFTER, "1"),
                _ => page,
            }
        }
    };
    response.into_response(console.is_secure())
}

async fn route(console: &Arc<Console>, api: &api::Worker, request: &mut ConsoleRequest) -> ConsoleResult {
    if !console.settings.host.is_named_by(&request.head) {
        return Err(ConsoleError::NotFound);
    }
    let path: Vec<String> = request.path().into_iter().map(str::to_owned).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let method = request.head.method.clone();
    match (method.as_str(), path.as_slice()) {
        ("GET", ["assets", version, name]) => assets::get(version, name),
        ("GET", ["openapi.json"]) => Ok(ConsoleResponse::json(console.settings.api_description.clone())),
        ("POST", ["sign-in", "provider", "logout"]) => provider::log_out(console, request).await,
        (method, ["sign-in" | "welcome", ..]) => visit(console, method, &path, request).await,
        ("GET", _) => show(console, &path, request).await,
        ("POST", _) => post(console, api, &path, request).await,
        _ => Err(ConsoleError::NotFound),
    }
}

/// Pages for visitors who are not signed in.
async fn visit(console: &Console, method: &str, path: &[&str], request: &mut ConsoleRequest) -> ConsoleResult {
    let visitor = Anonymous::from_request(console, request)?;
    match (method, path) {
        ("GET", ["sign-in"]) => Ok(first_step::page(&visitor, request)),
        ("POST", ["sign-in"]) => first_step::sign_in(visitor, request).await,
        ("GET", ["sign-in", "second-factor"]) => Ok(second_step::page(&visitor)),
        ("POST", ["sign-in", "second-factor"]) => second_step::sign_in(visitor, request).await,
        ("POST", ["sign-in", "passkey", "begin"]) => passkeys::begin_sign_in(&visitor, request).await,
        ("POST", ["sign-in", "passkey", "finish"]) => passkeys::finish_sign_in(visitor, request).await,
        ("GET", ["sign-in", "provider"]) => provider::begin(&visitor, request).await,
        ("GET", ["sign-in", "provider", "callback"]) => provider::finish(&visitor, request).await,
        ("GET", ["welcome", link]) => links::page(&visitor, link).await,
        ("POST", ["welcome", link]) => links::use_link(visitor, link, request).await,
        _ => Err(ConsoleError::NotFound),
    }
}

/// Pages for people who are signed in.
async fn show(console: &Console, path: &[&str], request: &mut ConsoleRequest) -> ConsoleResult {
    let user = &signed_in(console, request).await?;
    if user.session.lacks_second_factor && !is_for_setting_up(path) {
        return Ok(ConsoleResponse::redirect(second_factor::PATH));
    }
    let blank = &Draft::default();
    match path {
        [] => overview::page(user).await,
        ["keys"] => remembered(console, request, "keys", async |query| key_list::page(user, query, blank).await).await,
        ["keys", id] => key::detail(user, id).await,
        ["keys", id, "revoke"] => key::confirm_revoke(user, id).await,
        ["usage"] => usage::page(user, &request.query).await,
        ["usage.csv"] => usage::export(user, &request.query, Format::Csv).await,
        ["usage.json"] => usage::export(user, &request.query, Format::Json).await,
        ["prices"] => prices::page(user, blank).await,
        ["requests"] => requests::list(user, &request.query).await,
        ["requests.csv"] => Ok(requests::export(user, &request.query, Format::Csv)),
        ["requests.json"] => Ok(requests::export(user, &request.query, Format::Json)),
        ["requests", id] => requests::detail(user, id).await,
        ["limits"] => {
            remembered(console, request, "limits", async |query| limits::page(user, query, blank).await).await
        }
        ["playground"] => playground::page(user),
        ["team"] => remembered(console, request, "team", async |query| team::page(user, query).await).await,
        ["team", id] => member::page(user, id, blank).await,
        ["audit"] => audit::page(user, &request.query).await,
        ["audit.csv"] => audit::export(user, &request.query, Format::Csv),
        ["audit.json"] => audit::export(user, &request.query, Format::Json),
        ["account"] => account::page(user, blank).await,
        ["account", "second-factor"] => second_factor::page(user, blank).await,
        ["account", "second-factor", "app"] => second_factor::app_page(user, blank).await,
        _ => Err(ConsoleError::NotFound),
    }
}

/// Changes by people who are signed in.
async fn post(console: &Console, api: &api::Worker, path: &[&str], request: &mut ConsoleRequest) -> ConsoleResult {
    let user = &signed_in(console, request).await?;
    if user.session.lacks_second_factor && !is_for_setting_up(path) {
        return Ok(ConsoleResponse::redirect(second_factor::PATH));
    }
    match path {
        ["playground"] => playground::complete(user, api, user.json(request).await?).await,
        ["account", "passkeys", "begin"] => passkeys::begin_adding(user, &user.json(request).await?).await,
        ["account", "passkeys", "finish"] => passkeys::finish_adding(user, &user.json(request).await?).await,
        ["account", "confirmation", "begin"] => {
            user.json(request).await?;
            passkeys::begin_use(console).await
        }
        ["account", "confirmation", "finish"] => confirmation::finish_passkey(user, &user.json(request).await?).await,
        _ => {
            let form = user.form(request).await?;
            let posted_to = request.head.uri.path();
            match confirmation::check(user, &form).await {
                Err(ConsoleError::Refused(refusal)) => {
                    return confirmation::page(user, posted_to, &form, Some(refusal)).await;
                }
                checked => checked?,
            }
            match change(user, path, &form).await {
                Err(ConsoleError::NotConfirmed) => confirmation::page(user, posted_to, &form, None).await,
                Err(ConsoleError::OwnAccount) => {
                    user.redirect_with_message("/account", "Change your own account here.")
                }
                Err(ConsoleError::Refused(refusal)) => page_of_refused(user, path, &form, refusal).await,
                changed => changed,
            }
        }
    }
}

async fn change(user: &SignedIn<'_>, path: &[&str], form: &Form) -> ConsoleResult {
    match path {
        ["keys"] => key::create(user, form).await,
        ["keys", id, "rename"] => key::rename(user, id, form).await,
        ["keys", id, "rotate"] => key_settings::rotate(user, id, form).await,
        ["keys", id, "end-overlap"] => key_settings::end_overlap(user, id, form).await,
        ["keys", id, "settings"] => key_settings::save(user, id, form).await,
        ["keys", id, "revoke"] => key::revoke(user, id, form).await,
        ["prices"] => prices::set(user, form).await,
        ["prices", "remove"] => prices::remove(user, form).await,
        ["limits"] => limit_form::set(user, form).await,
        ["limits", "remove"] => limit_form::remove(user, form).await,
        ["limits", "test-notification"] => limit_form::test_notification(user, form).await,
        ["team", "invitations"] => team::invite(user, form).await,
        ["team", "links", id, "withdraw"] => team::withdraw(user, id, form).await,
        ["team", "deleted", id, "allow"] => team::allow_return(user, id, form).await,
        ["team", id, "role"] => member::set_role(user, id, form).await,
        ["team", id, "profile"] => member::save(user, id, form).await,
        ["team", id, "delete"] => member::delete(user, id, form).await,
        ["team", id, "revoke-keys"] => member::revoke_keys(user, id, form).await,
        ["team", id, "disable"] => member::disable(user, id, form).await,
        ["team", id, "enable"] => member::enable(user, id, form).await,
        ["team", id, "sessions", session, "end"] => member::end_session(user, id, session, form).await,
        ["team", "second-factor"] => team::require_second_factor(user, form).await,
        ["team", id, "sign-out"] => member::sign_out(user, id, form).await,
        ["team", id, "remove-second-factors"] => member::remove_second_factors(user, id, form).await,
        ["team", id, "reset"] => team::reset(user, id, form).await,
        ["account", "name"] => account::rename(user, form).await,
        ["account", "second-factor", "app"] => second_factor::add_app(user, form).await,
        ["account", "second-factor", "app", "remove"] => second_factor::remove_app(user, form).await,
        ["account", "second-factor", "codes"] => second_factor::create_codes(user, form).await,
        ["account", "passkeys", id, "remove"] => passkeys::remove(user, id, form).await,
        ["account", "password"] => account::change_password(user, form).await,
        ["account", "sessions", "end-others"] => account::end_other_sessions(user, form).await,
        ["account", "sessions", id, "end"] => account::end_session(user, id, form).await,
        ["sign-out"] => first_step::sign_out(user, form).await,
        _ => Err(ConsoleError::NotFound),
    }
}

/// The page of a form that was refused, with what was typed and the reason; other changes have an error page.
async fn page_of_refused(user: &SignedIn<'_>, path: &[&str], form: &Form, refusal: Refusal) -> ConsoleResult {
    let draft = &form.refused(refusal.clone());
    match path {
        ["keys"] => key_list::page(user, &Fields::default(), draft).await,
        ["keys", id, "rename"] => key::page_with(user, &key::find(user, id).await?, draft).await,
        ["prices"] => prices::page(user, draft).await,
        ["limits"] => limits::page(user, &Fields::default(), draft).await,
        ["team", id, "profile" | "delete"] => member::page(user, id, draft).await,
        ["account", "name" | "password"] => account::page(user, draft).await,
        ["account", "second-factor", "app"] => second_factor::app_page(user, draft).await,
        ["account", "second-factor" | "passkeys", ..] => second_factor::page(user, draft).await,
        _ => Err(refusal.into()),
    }
}

/// The person whose session the request has.
async fn signed_in<'a>(console: &'a Console, request: &mut ConsoleRequest) -> ConsoleResult<SignedIn<'a>> {
    let user = SignedIn::from_request(console, request).await?;
    if let Some(account) = user.viewer().account() {
        request.identify(account.id, &console.body_budget);
    }
    Ok(user)
}

/// Paths that are available before a required second factor is set up.
fn is_for_setting_up(path: &[&str]) -> bool {
    matches!(path, ["account", "second-factor" | "passkeys", ..] | ["sign-out"])
}
