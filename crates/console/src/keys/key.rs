//! API keys: creating, renaming, revoking, and the page of one.

use std::time::Duration;

use chat::{KeyId, KeyName};
use format::key_state;
use http::StatusCode;
use maud::{Markup, html};
use store::{AccountError, KeyRecord, Limit, NewKey, Project, RequestQuery, Scope};

use crate::keys::{list, settings};
use crate::limits::page as limits;
use crate::page::components::{copyable, csrf_field, form_error, heading, now, sentence, time, time_or};
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::form::Form;
use crate::page::layout::Area;
use crate::page::request::Fields;
use crate::page::session::SignedIn;
use crate::playground::snippets::curl;

const DAY: Duration = Duration::from_secs(86_400);
/// The value in the form, its label, and days.
const EXPIRY_CHOICES: [(&str, &str, Option<u32>); 5] = [
    ("never", "No expiration", None),
    ("30", "30 days", Some(30)),
    ("90", "90 days", Some(90)),
    ("180", "180 days", Some(180)),
    ("365", "1 year", Some(365)),
];

#[derive(Default)]
pub(crate) struct NewKeyForm<'a> {
    name: &'a str,
    without_completions: bool,
    lifetime: &'a str,
    project: &'a str,
    amount: &'a str,
    error: Option<&'a str>,
}

/// The state as badges.
pub(crate) fn badges(key: &KeyRecord) -> Markup {
    let state = key_state(key.state(now()));
    html! {
        span class={ "badge " (state) } { (state) }
        @if key.expires_soon(now()) { " " span.badge.soon { "expires soon" } }
    }
}

pub(crate) fn create_form(user: &SignedIn<'_>, form: &NewKeyForm<'_>) -> Markup {
    html! {
        section.card #create {
            h2 { "Create API key" }
            (form_error(form.error))
            form.fields method="post" action="/keys" {
                (csrf_field(user))
                label { "Name"
                    input name="name" required maxlength=(KeyName::MAX_CHARS) value=(form.name)
                        placeholder="my app" autocomplete="off";
                }
                label { "Expiration"
                    select name="lifetime" {
                        @for (value, label, _) in EXPIRY_CHOICES {
                            option value=(value) selected[form.lifetime == value] { (label) }
                        }
                    }
                }
                label { "Project (optional)"
                    input name="project" maxlength=(Project::MAX_CHARS) value=(form.project)
                        placeholder="search" autocomplete="off";
                }
                @if user.is_admin() { (limits::fields(form.amount)) }
                label.check {
                    input type="checkbox" name="completions" value="yes" checked[!form.without_completions];
                    span { "Allow completions" }
                }
                button.primary type="submit" { "Create key" }
            }
        }
    }
}

pub(crate) async fn create(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let parsed = parse_name(form.get("name"))
        .and_then(|name| Ok((name, parse_project(form.get("project"))?, limits::optional(user, form)?)));
    let (name, project, limit) = match parsed {
        Ok(parsed) => parsed,
        Err(sentence) => {
            let form = NewKeyForm {
                name: form.get("name"),
                without_completions: !form.has("completions"),
                lifetime: form.get("lifetime"),
                project: form.get("project"),
                amount: form.get("amount"),
                error: Some(&sentence),
            };
            let page = list::page_with(user, &Fields::default(), &form).await?;
            return Ok(page.with_status(StatusCode::BAD_REQUEST));
        }
    };
    let days = EXPIRY_CHOICES.iter().find(|(value, ..)| *value == form.get("lifetime")).and_then(|(.., days)| *days);
    let expires_at = days.map(|days| user.console.store.now() + days * DAY);
    let new = NewKey { name: name.clone(), completions: form.has("completions"), expires_at, project };
    let key = match user.console.store.create_key(user.viewer(), new, user.console.settings.keys_per_person).await {
        Ok(key) => key,
        Err(error @ AccountError::TooManyKeys(_)) => {
            let error = sentence(&error);
            let form = NewKeyForm { name: form.get("name"), error: Some(&error), ..NewKeyForm::default() };
            let page = list::page_with(user, &Fields::default(), &form).await?;
            return Ok(page.with_status(StatusCode::CONFLICT));
        }
        Err(error) => return Err(settings::declined(error)),
    };
    if let Some((kind, amount)) = limit {
        let limit = Limit { scope: Scope::Key(key.id()), kind, amount };
        user.console.store.set_limit(user.admin()?, limit).await.map_err(settings::declined)?;
    }
    let content = html! {
        (heading("API Keys", html! {}))
        p.message role="status" {
            "The key " strong { (name.as_str()) } " was created."
            @if let Some((kind, amount)) = limit { " It is limited to " (format::limit(kind, amount)) "." }
        }
        section.card {
            h2 { "Your new API key" }
            p { "Copy it now. It is not shown again: only a hash of it is stored." }
            (copyable("key", key.reveal()))
            h2 { "Try it" }
            (copyable("try", &curl(&user.console.settings.api_base_url, key.reveal())))
            p { a.button href="/keys" { "Done" } }
        }
    };
    Ok(user.page(Area::Keys, "Key created", content))
}

fn parse_name(typed: &str) -> Result<KeyName, String> {
    if typed.trim().is_empty() {
        return Err("Enter a name that says what the key is for.".into());
    }
    KeyName::parse(typed)
        .map_err(|_| format!("The name can have at most {} characters, and no control characters.", KeyName::MAX_CHARS))
}

fn parse_project(typed: &str) -> Result<Option<Project>, String> {
    Project::parse_optional(typed).map_err(|error| sentence(&error))
}

pub(crate) async fn detail(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let key = find(user, id).await?;
    let content = detail_content(user, &key, &key.name, None).await?;
    Ok(user.page(Area::Keys, &key.name, content))
}

async fn detail_content(
    user: &SignedIn<'_>,
    key: &KeyRecord,
    typed: &str,
    error: Option<&str>,
) -> ConsoleResult<Markup> {
    let limits = if key.playground {
        html! {}
    } else {
        limits::of_key(user, key.id).await?
    };
    let forms = settings::forms(user, key).await?;
    Ok(html! {
        (heading(&key.name, html! {
            a.button href={ "/usage?range=30d&key=" (key.id) } { "Usage" }
            a.button href={ "/requests?key=" (key.id) } { "Requests" }
            @if key.revoked_at.is_none() && !key.playground {
                a.button.danger href={ "/keys/" (key.id) "/revoke" } { "Revoke" }
            }
        }))
        section.card {
            (form_error(error))
            @if key.playground {
                p {
                    "Requests from the owner's playground are recorded under this key. "
                    "It has no secret, so the API does not accept it."
                }
            } @else {
                form.fields #rename method="post" action={ "/keys/" (key.id) "/rename" } {
                    (csrf_field(user))
                    label {
                        "Name"
                        input name="name" required maxlength=(KeyName::MAX_CHARS) value=(typed) autocomplete="off";
                    }
                    button type="submit" { "Rename" }
                }
            }
            dl.facts {
                dt { "Key" } dd { code { "adria_" (key.id) "_…" } }
                dt { "State" } dd { (badges(key)) }
                dt { "Permissions" } dd {
                    (if key.completions { "completions" } else { "none" })
                    @if key.admin_forbids_completions { " (set by an administrator)" }
                }
                dt { "Owner" } dd { (key.owner.as_deref().unwrap_or("command line")) }
                @if let Some(project) = &key.project { dt { "Project" } dd { (project) } }
                dt { "Created" } dd { (time(key.created_at)) }
                dt { "Last used" } dd { (time_or(key.last_used_at, "never")) }
                dt { "Expires" } dd {
                    (time_or(key.expires_at, "never"))
                    @match key.admin_expires_at {
                        Some(latest) if Some(latest) == key.expires_at => " (set by an administrator)",
                        Some(latest) => { " (at the latest " (time(latest)) ", set by an administrator)" },
                        None => {},
                    }
                }
                @if let Some(at) = key.revoked_at { dt { "Revoked" } dd { (time(at)) } }
                @if !key.note.is_empty() { dt { "Note" } dd { (key.note) } }
            }
        }
        (limits)
        (forms)
    })
}

pub(crate) async fn rename(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    match parse_name(form.get("name")) {
        Ok(name) => match user.console.store.rename_key(user.viewer(), key.id, &name).await? {
            true => {
                let message = format!("Renamed {} to {name}.", key.name);
                Ok(user.redirect_with_message(&format!("/keys/{}", key.id), &message))
            }
            false => Err(ConsoleError::NotFound),
        },
        Err(sentence) => {
            let content = detail_content(user, &key, form.get("name"), Some(&sentence)).await?;
            Ok(user.page(Area::Keys, &key.name, content).with_status(StatusCode::BAD_REQUEST))
        }
    }
}

pub(crate) async fn confirm_revoke(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let key = find(user, id).await?;
    let newest = RequestQuery { key: Some(key.id), limit: 1, ..RequestQuery::default() };
    let last = user.console.store.requests(user.viewer(), &newest).await?;
    let content = html! {
        section.card.narrow {
            h1 { "Revoke " (key.name) "?" }
            p {
                "The key " code { "adria_" (key.id) "_…" } " will be rejected from the next request on. "
                "This cannot be undone."
            }
            @match (key.last_used_at, last.first()) {
                (Some(_), Some(last)) => p {
                    "It was last used by the request "
                    a href={ "/requests/" (last.request_id) } { code { (last.request_id) } }
                    ", received " (time(last.request_id.timestamp())) ". Clients that use it will get 401."
                },
                (Some(at), None) => p { "It was last used " (time(at)) ". Clients that use it will get 401." },
                (None, _) => p { "It has never been used." },
            }
            form.actions method="post" action={ "/keys/" (key.id) "/revoke" } {
                (csrf_field(user))
                button.danger type="submit" { "Revoke " (key.name) }
                a.button href="/keys" { "Cancel" }
            }
        }
    };
    Ok(user.page(Area::Keys, "Revoke API key", content))
}

pub(crate) async fn revoke(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    match user.console.store.revoke_key(user.viewer(), key.id).await? {
        Some(_) => {
            let message = format!("{} was revoked. It is rejected from the next request on.", key.name);
            Ok(user.redirect_with_message("/keys", &message))
        }
        None => Err(ConsoleError::NotFound),
    }
}

pub(crate) async fn find(user: &SignedIn<'_>, id: &str) -> ConsoleResult<KeyRecord> {
    let id: KeyId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    user.console.store.key(user.viewer(), id).await?.ok_or(ConsoleError::NotFound)
}
