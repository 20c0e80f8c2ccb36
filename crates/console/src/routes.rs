//! The whole console on one page: which path is answered by whom. What stands above the line is for everybody, what
//! stands below it for those who are signed in; everything that changes something gets a `Form`.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use http::{Method, Request};
use hyper::body::Incoming;
use transport::Response;

use crate::reply::{Problem, Reply};
use crate::room::{Cookie, Guest, Room};
use crate::visit::Visit;
use crate::{Desk, account, assets, audit, entry, export, keys, overview, page, playground, requests, team, usage};

/// Answers a request, whatever it is.
pub(crate) async fn answer(desk: &Desk, visitor: IpAddr, request: Request<Incoming>) -> Response {
    let mut visit = Visit::new(visitor, request);
    let reply = match AssertUnwindSafe(route(desk, &mut visit)).catch_unwind().await {
        Ok(reply) => reply,
        Err(_panic) => {
            tracing::error!(path = visit.head.uri.path(), "the console panicked");
            Err(Problem::Ours)
        }
    };
    let had_message = desk.console.message(&visit).is_some();
    let reply = match reply {
        // What was said once is not said again.
        Ok(reply) if had_message && visit.head.method == Method::GET => {
            desk.console.set_cookie(reply, Cookie::Message, "", 0)
        }
        Ok(reply) => reply,
        Err(Problem::SignedOut) if !visit.is_post() => entry::ask_to_sign_in(&visit),
        Err(problem) => {
            if let Problem::Store(error) = &problem {
                tracing::error!(%error, "the console could not read or write");
            }
            let room = Room::of(&desk.console, &visit).await.ok();
            Reply::page_as(problem.status(), page::problem(room.as_ref(), &problem))
        }
    };
    reply.into_answer()
}

async fn route(desk: &Desk, visit: &mut Visit) -> Result<Reply, Problem> {
    let console = &*desk.console;
    if !console.settings.host.is_named_by(&visit.head) {
        return Err(Problem::NotFound);
    }
    let path: Vec<String> = visit.path().into_iter().map(str::to_owned).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let method = visit.head.method.clone();
    match (method.as_str(), path.as_slice()) {
        ("GET", ["assets", name]) => return assets::get(name),
        ("GET", ["openapi.json"]) => return Ok(Reply::json(console.settings.api_description.clone())),
        ("GET", ["sign-in"]) => return entry::sign_in_page(&Guest::of(console, visit)?, visit),
        ("POST", ["sign-in"]) => return entry::sign_in(Guest::of(console, visit)?, visit).await,
        ("GET", ["welcome", link]) => return entry::link_page(&Guest::of(console, visit)?, link).await,
        ("POST", ["welcome", link]) => return entry::use_link(Guest::of(console, visit)?, link, visit).await,
        _ => {}
    }
    // ------------------------------------------------------------------------------------------------ signed in only
    let room = Room::of(console, visit).await?;
    if method == Method::GET {
        return match path.as_slice() {
            [] => overview::page(&room).await,
            ["keys"] => keys::list(&room, &visit.query).await,
            ["keys", id] => keys::one(&room, id).await,
            ["keys", id, "revoke"] => keys::confirm_revoking(&room, id).await,
            ["usage"] => usage::page(&room, &visit.query).await,
            ["usage.csv"] => export::usage(&room, &visit.query).await,
            ["requests"] => requests::list(&room, &visit.query).await,
            ["requests.csv"] => Ok(export::requests(&room, &visit.query)),
            ["requests", id] => requests::one(&room, id).await,
            ["playground"] => playground::page(&room),
            ["team"] => team::page(&room).await,
            ["audit"] => audit::page(&room, &visit.query).await,
            ["account"] => account::page(&room).await,
            _ => Err(Problem::NotFound),
        };
    }
    if method != Method::POST {
        return Err(Problem::NotFound);
    }
    if path == ["playground"] {
        let body = room.json(visit).await?;
        return playground::complete(&room, &desk.api, body).await;
    }
    let form = room.form(visit).await?;
    match path.as_slice() {
        ["keys"] => keys::create(&room, &form).await,
        ["keys", id, "rename"] => keys::rename(&room, id, &form).await,
        ["keys", id, "revoke"] => keys::revoke(&room, id, &form).await,
        ["team", "invitations"] => team::invite(&room, &form).await,
        ["team", "links", id, "withdraw"] => team::withdraw(&room, id, &form).await,
        ["team", id, "role"] => team::set_role(&room, id, &form).await,
        ["team", id, "disable"] => team::set_disabled(&room, id, true, &form).await,
        ["team", id, "enable"] => team::set_disabled(&room, id, false, &form).await,
        ["team", id, "reset"] => team::reset(&room, id, &form).await,
        ["account", "name"] => account::rename(&room, &form).await,
        ["account", "password"] => account::change_password(&room, &form).await,
        ["account", "sessions", "end-others"] => account::end_others(&room, &form).await,
        ["account", "sessions", id, "end"] => account::end_session(&room, id, &form).await,
        ["sign-out"] => entry::sign_out(&room, &form).await,
        _ => Err(Problem::NotFound),
    }
}
