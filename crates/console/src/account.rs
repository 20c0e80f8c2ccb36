//! A person's own account: name, password, sessions.

use maud::{Markup, html};
use store::SessionRecord;

use crate::form::Form;
use crate::page::{self, Area, button_form, complaint, token};
use crate::password::{Password, SHORTEST};
use crate::reply::{Problem, Reply};
use crate::room::Room;
use crate::show::time;

const LONGEST_NAME: usize = 80;

/// What is wrong with one of the page's forms.
#[derive(Default)]
struct Wrong<'a> {
    name: Option<&'a str>,
    password: Option<&'a str>,
}

pub(crate) async fn page(room: &Room<'_>) -> Result<Reply, Problem> {
    Ok(Reply::page(content(room, &Wrong::default()).await?))
}

async fn content(room: &Room<'_>, wrong: &Wrong<'_>) -> Result<Markup, Problem> {
    let account = room.viewer().account().ok_or(Problem::SignedOut)?;
    let sessions = room.console.store.sessions(room.viewer()).await?;
    let content = html! {
        (page::heading("Account", html! {}))
        section.card {
            h2 { "You" }
            (complaint(wrong.name))
            form.fields method="post" action="/account/name" {
                (token(room))
                label { "Name" input name="name" required maxlength=(LONGEST_NAME) value=(account.name) autocomplete="name"; }
                button type="submit" { "Save name" }
            }
            dl.facts {
                dt { "E-mail" } dd { (account.email) }
                dt { "Role" } dd { (account.role) }
                dt { "Member since" } dd { (time(account.created_at)) }
            }
        }
        section.card {
            h2 { "Password" }
            (complaint(wrong.password))
            form.fields method="post" action="/account/password" {
                (token(room))
                input type="hidden" name="username" value=(account.email) autocomplete="username";
                label { "Current password" input type="password" name="current" required autocomplete="current-password"; }
                label { "New password"
                    input type="password" name="password" required minlength=(SHORTEST) autocomplete="new-password";
                }
                label { "New password again" input type="password" name="again" required autocomplete="new-password"; }
                button type="submit" { "Change password" }
            }
            p.quiet { "All your other sessions end when the password changes." }
        }
        section.card {
            div.heading {
                h2 { "Sessions" }
                @if sessions.len() > 1 {
                    div.actions { (button_form(room, "/account/sessions/end-others", "End all others", "plain")) }
                }
            }
            (session_table(room, &sessions))
        }
    };
    Ok(page::page(room, Area::Account, "Account", content))
}

fn session_table(room: &Room<'_>, sessions: &[SessionRecord]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Sessions" {
            table.rows {
                thead { tr {
                    th scope="col" { "Browser" } th scope="col" { "Address" } th scope="col" { "Signed in" }
                    th scope="col" { "Last used" } th scope="col" { span.hidden { "Actions" } }
                } }
                tbody {
                    @for session in sessions {
                        tr {
                            th scope="row" data-label="Browser" { (browser(&session.origin.agent)) }
                            td data-label="Address" { (session.origin.address) }
                            td data-label="Signed in" { (time(session.created_at)) }
                            td data-label="Last used" { (time(session.seen_at)) }
                            td.actions {
                                @if session.id == room.session.id { span.badge.active { "this one" } } @else {
                                    (button_form(room, &format!("/account/sessions/{}/end", session.id), "End", "plain"))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A browser in two words, the whole of what it says on hover.
fn browser(agent: &str) -> Markup {
    let of = |names: &[(&'static str, &'static str)]| {
        names.iter().find(|(part, _)| agent.contains(part)).map(|(_, name)| *name)
    };
    let browsers = [("Firefox/", "Firefox"), ("Edg/", "Edge"), ("Chrome/", "Chrome"), ("Safari/", "Safari")];
    let systems = [
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("iPad", "iPad"),
        ("Windows", "Windows"),
        ("Mac OS", "macOS"),
        ("Linux", "Linux"),
    ];
    let name = match (of(&browsers), of(&systems)) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(browser), None) => browser.to_owned(),
        _ => "Another program".to_owned(),
    };
    html! { span title=(agent) { (name) } }
}

async fn refused(room: &Room<'_>, wrong: &Wrong<'_>) -> Result<Reply, Problem> {
    Ok(Reply::page_as(http::StatusCode::BAD_REQUEST, content(room, wrong).await?))
}

pub(crate) async fn rename(room: &Room<'_>, form: &Form) -> Result<Reply, Problem> {
    let name = form.get("name");
    if name.is_empty() || name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
        let sentence = format!("A name has 1 to {LONGEST_NAME} characters.");
        return refused(room, &Wrong { name: Some(&sentence), ..Wrong::default() }).await;
    }
    room.console.store.set_own_name(room.viewer(), name).await?;
    Ok(room.redirect_saying("/account", &format!("You are now called {name}.")))
}

pub(crate) async fn change_password(room: &Room<'_>, form: &Form) -> Result<Reply, Problem> {
    let account = room.viewer().account().ok_or(Problem::SignedOut)?;
    let chosen = Password::choose(form.raw("password"), form.raw("again"), account.email.as_str());
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(sentence) => return refused(room, &Wrong { password: Some(&sentence), ..Wrong::default() }).await,
    };
    let current = room.console.store.password(room.viewer()).await?;
    if !room.console.passwords.verify(form.raw("current"), current).await {
        let sentence = "The current password is not right.";
        return refused(room, &Wrong { password: Some(sentence), ..Wrong::default() }).await;
    }
    let hash = room.console.passwords.hash(chosen).await.ok_or(Problem::Ours)?;
    room.console.store.set_password(room.viewer(), room.session.id, &hash).await?;
    Ok(room.redirect_saying("/account", "The password was changed, and all your other sessions have ended."))
}

pub(crate) async fn end_session(room: &Room<'_>, id: &str, _form: &Form) -> Result<Reply, Problem> {
    let id = id.parse().map_err(|_| Problem::NotFound)?;
    match room.console.store.end_session(room.viewer(), id).await? {
        true => Ok(room.redirect_saying("/account", "That session has ended.")),
        false => Err(Problem::NotFound),
    }
}

pub(crate) async fn end_others(room: &Room<'_>, _form: &Form) -> Result<Reply, Problem> {
    let ended = room.console.store.end_other_sessions(room.viewer(), room.session.id).await?;
    let s = if ended == 1 { " has" } else { "s have" };
    Ok(room.redirect_saying("/account", &format!("{ended} other session{s} ended.")))
}
