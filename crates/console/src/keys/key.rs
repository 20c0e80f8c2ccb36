//! API keys: creating, renaming, revoking, and the page of one.

use std::time::Duration;

use chat::{ApiKey, KeyId, KeyName};
use format::key_state;
use maud::{Markup, html};
use store::{KeyRecord, Limit, LimitKind, NewKey, Project, RequestQuery, Scope};

use crate::keys::settings;
use crate::limits::{form as limit_form, page as limits};
use crate::page::{
    Area, ConsoleError, ConsoleResponse, ConsoleResult, Draft, Form, Refusal, SignedIn, copyable, csrf_field, found,
    heading, now, or_placeholder, parse_id, select, time,
};
use crate::playground::curl;

const DAY: Duration = Duration::from_secs(86_400);
/// The value in the form, its label, and days.
const EXPIRY_CHOICES: [(&str, &str, Option<u32>); 5] = [
    ("never", "No expiration", None),
    ("30", "30 days", Some(30)),
    ("90", "90 days", Some(90)),
    ("180", "180 days", Some(180)),
    ("365", "1 year", Some(365)),
];

/// The state as badges.
pub(crate) fn badges(key: &KeyRecord) -> Markup {
    let state = key_state(key.state(now()));
    html! {
        span class={ "badge " (state) } { (state) }
        @if key.expires_soon(now()) { " " span.badge.soon { "expires soon" } }
    }
}

pub(crate) fn create_form(user: &SignedIn<'_>, draft: &Draft) -> Markup {
    let allows_completions = !draft.is_refused() || !draft.get("completions").is_empty();
    html! {
        section.card #create {
            h2 { "Create API key" }
            (draft.message())
            form.fields method="post" action="/keys" {
                (csrf_field(user))
                label { "Name"
                    input name="name" required maxlength=(KeyName::MAX_CHARS) value=(draft.get("name"))
                        placeholder="my app" autocomplete="off";
                }
                (select("Expiration", "lifetime", EXPIRY_CHOICES.map(|(value, label, _)| (value, label)), draft.get("lifetime")))
                label { "Project (optional)"
                    input name="project" maxlength=(Project::MAX_CHARS) value=(draft.get("project"))
                        placeholder="search" autocomplete="off";
                }
                @if user.is_admin() { (limit_form::fields(draft.get("amount"))) }
                label.check {
                    input type="checkbox" name="completions" value="yes" checked[allows_completions];
                    span { "Allow completions" }
                }
                button.primary type="submit" { "Create key" }
            }
        }
    }
}

pub(crate) async fn create(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let (new, limit) = parse_new(user, form)?;
    let name = new.name.clone();
    let key = user.store().keys().create(user.viewer(), new, user.console.settings.keys_per_person).await?;
    if let Some((kind, amount)) = limit {
        user.store().limits().set(user.admin()?, Limit { scope: Scope::Key(key.id()), kind, amount }).await?;
    }
    let message = html! {
        "The key " strong { (name.as_str()) } " was created."
        @if let Some((kind, amount)) = limit { " It is limited to " (format::limit(kind, amount)) "." }
    };
    Ok(page_with_secret(user, "API Keys", message, &key, "/keys"))
}

/// The page with a new secret, which no other page shows.
pub(crate) fn page_with_secret(
    user: &SignedIn<'_>,
    title: &str,
    message: Markup,
    key: &ApiKey,
    next: &str,
) -> ConsoleResponse {
    let content = html! {
        (heading(title, html! {}))
        p.message role="status" { (message) }
        section.card {
            h2 { "Your new API key" }
            p { "Copy it now. It is not shown again: only a hash of it is stored." }
            (copyable("key", key.reveal()))
            h2 { "Try it" }
            (copyable("try", &curl(&user.console.settings.api_base_url, key.reveal())))
            p { a.button href=(next) { "Done" } }
        }
    };
    user.bare_page(Area::Keys, "New API key", content)
}

/// The key and its limit in the form.
fn parse_new(user: &SignedIn<'_>, form: &Form) -> Result<(NewKey, Option<(LimitKind, u64)>), Refusal> {
    let name = parse_name(form.get("name"))?;
    let project = Project::parse_optional(form.get("project")).map_err(Refusal::from_error)?;
    let days = EXPIRY_CHOICES.iter().find(|(value, ..)| *value == form.get("lifetime")).and_then(|(.., days)| *days);
    let expires_at = days.map(|days| user.store().now() + days * DAY);
    let new = NewKey { name, completions: form.has("completions"), expires_at, project };
    Ok((new, limit_form::optional(user, form)?))
}

fn parse_name(typed: &str) -> Result<KeyName, Refusal> {
    if typed.trim().is_empty() {
        return Err(Refusal::invalid("Enter a name that says what the key is for."));
    }
    let max = KeyName::MAX_CHARS;
    KeyName::parse(typed).map_err(|_| {
        Refusal::invalid(format!("The name can have at most {max} characters, and no control characters."))
    })
}

pub(crate) async fn detail(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let key = find(user, id).await?;
    page_with(user, &key, &Draft::with("name", &key.name)).await
}

pub(crate) async fn page_with(user: &SignedIn<'_>, key: &KeyRecord, draft: &Draft) -> ConsoleResult {
    let limits = if key.playground {
        html! {}
    } else {
        limits::of_key(user, key.id).await?
    };
    let settings = settings::forms(user, key).await?;
    let actions = html! {
        a.button href={ "/usage?range=30d&key=" (key.id) } { "Usage" }
        a.button href={ "/requests?key=" (key.id) } { "Requests" }
        @if key.revoked_at.is_none() && !key.playground {
            a.button.danger href={ "/keys/" (key.id) "/revoke" } { "Revoke" }
        }
    };
    let content = html! {
        section.card {
            (draft.message())
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
                        input name="name" required maxlength=(KeyName::MAX_CHARS) value=(draft.get("name")) autocomplete="off";
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
                dt { "Last used" } dd { (or_placeholder(key.last_used_at.map(time), "never")) }
                dt { "Expires" } dd {
                    (or_placeholder(key.expires_at.map(time), "never"))
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
        (settings)
    };
    Ok(user.page(Area::Keys, &key.name, actions, content).with_status(draft.status()))
}

pub(crate) async fn rename(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    let name = parse_name(form.get("name"))?;
    found(user.store().keys().rename(user.viewer(), key.id, &name).await?)?;
    user.redirect_with_message(&format!("/keys/{}", key.id), &format!("Renamed {} to {name}.", key.name))
}

pub(crate) async fn confirm_revoke(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let key = find(user, id).await?;
    let newest = RequestQuery { key: Some(key.id), limit: 1, ..RequestQuery::default() };
    let last = user.store().usage().requests(user.viewer(), &newest).await?;
    // Its newest request may be another person's, who had the key meanwhile.
    let last = last.first().filter(|last| Some(last.request_id.timestamp()) >= key.last_used_at);
    let content = html! {
        section.card.narrow {
            h1 { "Revoke " (key.name) "?" }
            p {
                "The key " code { "adria_" (key.id) "_…" } " will be rejected from the next request on. "
                "This cannot be undone."
            }
            @match (key.last_used_at, last) {
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
    Ok(user.bare_page(Area::Keys, "Revoke API key", content))
}

pub(crate) async fn revoke(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    found(user.store().keys().revoke(user.viewer(), key.id).await?.is_some())?;
    let message = format!("{} was revoked. It is rejected from the next request on.", key.name);
    user.redirect_with_message("/keys", &message)
}

pub(crate) async fn find(user: &SignedIn<'_>, id: &str) -> ConsoleResult<KeyRecord> {
    let id: KeyId = parse_id(id)?;
    user.store().keys().find(user.viewer(), id).await?.ok_or(ConsoleError::NotFound)
}
