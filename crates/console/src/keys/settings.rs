//! Settings of a key: secret, expiry, permission, owner, note and project.

use std::time::Duration;

use chat::Timestamp;
use maud::{Markup, html};
use store::{KeyChange, KeyNote, KeyRecord, Project};

use crate::keys::key::{find, page_with_secret};
use crate::page::{ConsoleError, ConsoleResult, Form, SignedIn, button_form, csrf_field, found, now, select, time};
use crate::people::{PersonChoice, find_by_email};

/// The value in the form, its label, and how long the old secret works.
const OVERLAPS: [(&str, &str, Duration); 4] = [
    ("0", "stops working immediately", Duration::ZERO),
    ("1h", "works for 1 more hour", Duration::from_secs(3_600)),
    ("24h", "works for 24 more hours", Duration::from_secs(86_400)),
    ("7d", "works for 7 more days", Duration::from_secs(7 * 86_400)),
];
const DEFAULT_OVERLAP: &str = "24h";

/// The forms on a key's page.
pub(crate) async fn forms(user: &SignedIn<'_>, key: &KeyRecord) -> ConsoleResult<Markup> {
    if key.playground || key.revoked_at.is_some() {
        return Ok(html! {});
    }
    let people = match user.viewer().admin() {
        Some(admin) => user.store().accounts().list(admin).await?,
        None => Vec::new(),
    };
    let expires = key.expires_at.map(format::date).unwrap_or_default();
    // A bound for owners. Administrators may choose any date.
    let latest = key.admin_expires_at.filter(|_| !user.is_admin()).map(format::date);
    let old_until = key.previous_until.filter(|until| *until > now());
    Ok(html! {
        section.card #settings {
            h2 { "Settings" }
            form.fields method="post" action={ "/keys/" (key.id) "/settings" } {
                (csrf_field(user))
                label { "Expiration date"
                    input type="date" name="expires" value=(expires) min=(format::date(now())) max=[latest.as_deref()]
                        required[latest.is_some()] aria-describedby="about-expiration";
                    span.hint #about-expiration {
                        "The key works until the end of that day, UTC. "
                        @match &latest {
                            Some(latest) => { "The latest date, " (latest) ", was set by an administrator." },
                            None => "Empty: no expiration.",
                        }
                    }
                }
                @if user.is_admin() {
                    label { "Owner"
                        (PersonChoice {
                            field: "owner",
                            others: &[("", "none (command line)")],
                            selected: key.owner.as_deref(),
                        }.render(&people))
                    }
                }
                label { "Project (usage is grouped by project)"
                    input name="project" maxlength=(Project::MAX_CHARS) autocomplete="off"
                        value=(key.project.as_ref().map_or("", Project::as_str));
                }
                label { "Note"
                    textarea name="note" rows="2" maxlength=(KeyNote::MAX_CHARS) { (key.note) }
                }
                label.check {
                    input type="checkbox" name="completions" value="yes" checked[key.completions]
                        disabled[!user.is_admin() && key.admin_forbids_completions];
                    span {
                        "Allow completions"
                        @if key.admin_forbids_completions { " (set by an administrator)" }
                    }
                }
                button type="submit" { "Save" }
            }
        }
        section.card #rotate {
            h2 { "Rotate key" }
            p.quiet {
                "Creates a new secret for this key. Its limits, usage and settings stay the same."
                @if let Some(until) = old_until {
                    " The previous secret still works until " (time(until)) "."
                }
            }
            form.fields method="post" action={ "/keys/" (key.id) "/rotate" } {
                (csrf_field(user))
                (select("Old secret", "overlap", OVERLAPS.map(|(value, label, _)| (value, label)), DEFAULT_OVERLAP))
                button type="submit" { "Rotate key" }
            }
            @if old_until.is_some() {
                (button_form(user, &format!("/keys/{}/end-overlap", key.id), "End the old secret now", ""))
            }
        }
    })
}

pub(crate) async fn rotate(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    let overlap = OVERLAPS.iter().find(|(value, ..)| *value == form.get("overlap")).ok_or(ConsoleError::Unreadable)?.2;
    let rotated = user.store().keys().rotate(user.viewer(), key.id, overlap).await?.ok_or(ConsoleError::NotFound)?;
    let message = html! {
        "The key " strong { (key.name) } " has a new secret. "
        @match overlap.is_zero() {
            true => "The old one is rejected from now on.",
            false => { "The old one works until " (time(user.store().now() + overlap)) "." },
        }
    };
    Ok(page_with_secret(user, &key.name, message, &rotated, &format!("/keys/{}", key.id)))
}

pub(crate) async fn end_overlap(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    let message = match user.store().keys().end_overlap(user.viewer(), key.id).await? {
        true => "The old secret is rejected from now on.",
        false => "There is no old secret that still works.",
    };
    user.redirect_with_message(&format!("/keys/{}", key.id), message)
}

pub(crate) async fn save(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    let mut changes = changes(&key, form)?;
    let owner = form.get("owner");
    if user.is_admin() && !owner.eq_ignore_ascii_case(key.owner.as_deref().unwrap_or_default()) {
        changes.push(KeyChange::Owner(match owner {
            "" => None,
            email => Some(find_by_email(user, email).await?.id),
        }));
    }
    found(user.store().keys().update(user.viewer(), key.id, &changes).await?)?;
    user.redirect_with_message(&format!("/keys/{}", key.id), &format!("{} was saved.", key.name))
}

/// The settings in the form that differ from the key.
fn changes(key: &KeyRecord, form: &Form) -> ConsoleResult<Vec<KeyChange>> {
    let mut changes = Vec::new();
    let typed = form.get("expires");
    if typed != key.expires_at.map(format::date).unwrap_or_default() {
        let expiry = match typed {
            "" => None,
            date => {
                let end = end_of_day(format::parse_date(date).ok_or(ConsoleError::Unreadable)?);
                // On the day of the administrator's expiry date, the exact time of that date applies.
                let latest = key.admin_expires_at.filter(|latest| format::date(*latest) == date);
                Some(latest.unwrap_or(end))
            }
        };
        changes.push(KeyChange::Expiry(expiry));
    }
    if form.has("completions") != key.completions {
        changes.push(KeyChange::Completions(form.has("completions")));
    }
    let note = KeyNote::parse(form.get("note")).map_err(|_| ConsoleError::Unreadable)?;
    if note.as_str() != key.note {
        changes.push(KeyChange::Note(note));
    }
    let project = Project::parse_optional(form.get("project")).map_err(|_| ConsoleError::Unreadable)?;
    if project != key.project {
        changes.push(KeyChange::Project(project));
    }
    Ok(changes)
}

fn end_of_day(start: Timestamp) -> Timestamp {
    start + Duration::from_secs(86_399)
}
