//! Every path of the console and its handler. Paths above the line are public, paths below it require a session. A handler
//! that changes something takes a `Form`.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use http::{Method, header};
use transport::Response;

use crate::Worker;
use crate::keys::{key, list as key_list, settings as key_settings};
use crate::limits::page as limits;
use crate::overview::page as overview;
use crate::page::cookies::Cookie;
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::request::ConsoleRequest;
use crate::page::response::ConsoleResponse;
use crate::page::session::{Anonymous, SignedIn};
use crate::page::sorting::remembered;
use crate::page::{assets, layout};
use crate::people::{account, audit, member, team};
use crate::playground::page as playground;
use crate::sign_in::{confirmation, first_step, links, passkeys, provider, second_factor, second_step};
use crate::usage::export::Format;
use crate::usage::{export, page as usage, prices, requests};

pub(crate) async fn handle(worker: &Worker, mut request: ConsoleRequest) -> Response {
    let result = match AssertUnwindSafe(route(worker, &mut request)).catch_unwind().await {
        Ok(result) => result,
        Err(_panic) => {
            tracing::error!(path = request.head.uri.path(), "a console handler panicked");
            Err(ConsoleError::Internal)
        }
    };
    let had_message = worker.console.message(&request).is_some();
    let response = match result {
        // A message is shown once.
        Ok(response) if had_message && request.head.method == Method::GET => {
            worker.console.clear_cookie(response, Cookie::Message)
        }
        Ok(response) => response,
        // Scripts read the status instead of following a redirect.
        Err(ConsoleError::SignedOut) if !request.is_json() => {
            first_step::redirect_to_sign_in(&worker.console, &request)
        }
        Err(error) => {
            if let ConsoleError::Store(error) = &error {
                tracing::error!(%error, "the console could not reach the database");
            }
            let user = SignedIn::from_request(&worker.console, &request).await.ok();
            let page = ConsoleResponse::page(layout::error_page(user.as_ref(), &error)).with_status(error.status());
            match error {
                ConsoleError::Busy => page.with_header(header::RETRY_AFTER, "1"),
                _ => page,
            }
        }
    };
    response.into_response(worker.console.is_secure())
}

async fn route(worker: &Worker, request: &mut ConsoleRequest) -> ConsoleResult {
    let console = &*worker.console;
    if !console.settings.host.is_named_by(&request.head) {
        return Err(ConsoleError::NotFound);
    }
    let path: Vec<String> = request.path().into_iter().map(str::to_owned).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let method = request.head.method.clone();
    match (method.as_str(), path.as_slice()) {
        ("GET", ["assets", version, name]) => return assets::get(version, name),
        ("GET", ["openapi.json"]) => return Ok(ConsoleResponse::json(console.settings.api_description.clone())),
        ("GET", ["sign-in"]) => return Ok(first_step::page(&Anonymous::from_request(console, request)?, request)),
        ("POST", ["sign-in"]) => return first_step::sign_in(Anonymous::from_request(console, request)?, request).await,
        ("GET", ["sign-in", "second-factor"]) => {
            return Ok(second_step::page(&Anonymous::from_request(console, request)?));
        }
        ("POST", ["sign-in", "second-factor"]) => {
            return second_step::sign_in(Anonymous::from_request(console, request)?, request).await;
        }
        ("POST", ["sign-in", "passkey", "begin"]) => {
            return passkeys::begin_sign_in(&Anonymous::from_request(console, request)?, request).await;
        }
        ("POST", ["sign-in", "passkey", "finish"]) => {
            return passkeys::finish_sign_in(Anonymous::from_request(console, request)?, request).await;
        }
        ("GET", ["sign-in", "provider"]) => {
            return provider::begin(&Anonymous::from_request(console, request)?, request).await;
        }
        ("GET", ["sign-in", "provider", "callback"]) => {
            return provider::finish(&Anonymous::from_request(console, request)?, request).await;
        }
        ("POST", ["sign-in", "provider", "logout"]) => return provider::log_out(&worker.console, request).await,
        ("GET", ["welcome", link]) => return links::page(&Anonymous::from_request(console, request)?, link).await,
        ("POST", ["welcome", link]) => {
            return links::use_link(Anonymous::from_request(console, request)?, link, request).await;
        }
        _ => {}
    }
    // ------------------------------------------------------------------------------------------------ signed in only
    let user = SignedIn::from_request(console, request).await?;
    if let Some(account) = user.viewer().account() {
        request.identify(account.id, &console.body_budget);
    }
    if user.session.lacks_second_factor && !is_for_setting_up(&path) {
        return Ok(ConsoleResponse::redirect("/account/second-factor"));
    }
    if method == Method::GET {
        return match path.as_slice() {
            [] => overview::page(&user).await,
            ["keys"] => remembered(console, request, "keys", async |query| key_list::page(&user, query).await).await,
            ["keys", id] => key::detail(&user, id).await,
            ["keys", id, "revoke"] => key::confirm_revoke(&user, id).await,
            ["usage"] => usage::page(&user, &request.query).await,
            ["usage.csv"] => export::usage(&user, &request.query, Format::Csv).await,
            ["usage.json"] => export::usage(&user, &request.query, Format::Json).await,
            ["prices"] => prices::page(&user).await,
            ["requests"] => requests::list(&user, &request.query).await,
            ["requests.csv"] => Ok(export::requests(&user, &request.query, Format::Csv)),
            ["requests.json"] => Ok(export::requests(&user, &request.query, Format::Json)),
            ["requests", id] => requests::detail(&user, id).await,
            ["limits"] => remembered(console, request, "limits", async |query| limits::page(&user, query).await).await,
            ["playground"] => playground::page(&user),
            ["team"] => remembered(console, request, "team", async |query| team::page(&user, query).await).await,
            ["team", id] => member::page(&user, id).await,
            ["audit"] => audit::page(&user, &request.query).await,
            ["audit.csv"] => export::audit(&user, &request.query, Format::Csv),
            ["audit.json"] => export::audit(&user, &request.query, Format::Json),
            ["account"] => account::page(&user).await,
            ["account", "second-factor"] => second_factor::page(&user).await,
            ["account", "second-factor", "app"] => second_factor::app_page(&user).await,
            _ => Err(ConsoleError::NotFound),
        };
    }
    if method != Method::POST {
        return Err(ConsoleError::NotFound);
    }
    if path == ["playground"] {
        let body = user.json(request).await?;
        return playground::complete(&user, &worker.api, body).await;
    }
    if let ["account", "passkeys", step @ ("begin" | "finish")] = path.as_slice() {
        let body = user.json(request).await?;
        return match *step {
            "begin" => passkeys::begin_adding(&user, &body).await,
            _ => passkeys::finish_adding(&user, &body).await,
        };
    }
    if let ["account", "confirmation", step @ ("begin" | "finish")] = path.as_slice() {
        let body = user.json(request).await?;
        return match *step {
            "begin" => passkeys::begin_use(console).await,
            _ => confirmation::finish_passkey(&user, &body).await,
        };
    }
    let form = user.form(request).await?;
    let posted_to = request.head.uri.path();
    if let Some(refused) = confirmation::check(&user, posted_to, &form).await? {
        return Ok(refused);
    }
    let changed = match path.as_slice() {
        ["keys"] => key::create(&user, &form).await,
        ["keys", id, "rename"] => key::rename(&user, id, &form).await,
        ["keys", id, "rotate"] => key_settings::rotate(&user, id, &form).await,
        ["keys", id, "end-overlap"] => key_settings::end_overlap(&user, id, &form).await,
        ["keys", id, "settings"] => key_settings::save(&user, id, &form).await,
        ["keys", id, "revoke"] => key::revoke(&user, id, &form).await,
        ["prices"] => prices::set(&user, &form).await,
        ["prices", "remove"] => prices::remove(&user, &form).await,
        ["limits"] => limits::set(&user, &form).await,
        ["limits", "remove"] => limits::remove(&user, &form).await,
        ["limits", "test-notification"] => limits::test_notification(&user).await,
        ["team", "invitations"] => team::invite(&user, &form).await,
        ["team", "links", id, "withdraw"] => team::withdraw(&user, id, &form).await,
        ["team", "deleted", id, "allow"] => team::allow_return(&user, id, &form).await,
        ["team", id, "role"] => team::set_role(&user, id, &form).await,
        ["team", id, "profile"] => member::save(&user, id, &form).await,
        ["team", id, "delete"] => member::delete(&user, id, &form).await,
        ["team", id, "revoke-keys"] => member::revoke_keys(&user, id, &form).await,
        ["team", id, "disable"] => team::disable(&user, id, &form).await,
        ["team", id, "enable"] => team::enable(&user, id, &form).await,
        ["team", id, "sessions", session, "end"] => member::end_session(&user, id, session, &form).await,
        ["team", "second-factor"] => team::require_second_factor(&user, &form).await,
        ["team", id, "sign-out"] => member::sign_out(&user, id, &form).await,
        ["team", id, "remove-second-factors"] => member::remove_second_factors(&user, id, &form).await,
        ["team", id, "reset"] => team::reset(&user, id, &form).await,
        ["account", "name"] => account::rename(&user, &form).await,
        ["account", "second-factor", "app"] => second_factor::add_app(&user, &form).await,
        ["account", "second-factor", "app", "remove"] => second_factor::remove_app(&user, &form).await,
        ["account", "second-factor", "codes"] => second_factor::create_codes(&user, &form).await,
        ["account", "passkeys", id, "remove"] => passkeys::remove(&user, id, &form).await,
        ["account", "password"] => account::change_password(&user, &form).await,
        ["account", "sessions", "end-others"] => account::end_other_sessions(&user, &form).await,
        ["account", "sessions", id, "end"] => account::end_session(&user, id, &form).await,
        ["sign-out"] => first_step::sign_out(&user, &form).await,
        _ => Err(ConsoleError::NotFound),
    };
    match changed {
        Err(ConsoleError::NotConfirmed) => confirmation::page(&user, posted_to, &form, None).await,
        changed => changed,
    }
}

/// Paths that are available before a required second factor is set up.
fn is_for_setting_up(path: &[&str]) -> bool {
    matches!(path, ["account", "second-factor" | "passkeys", ..] | ["sign-out"])
}
