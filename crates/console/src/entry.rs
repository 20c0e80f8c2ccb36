//! The way in and out: signing in, links that make an account or reset a password, signing out.

use http::StatusCode;
use maud::{Markup, html};
use store::{AccountError, AccountId, Email, Link, LinkPurpose, NewAccount, Token};

use crate::form::{Form, TOKEN};
use crate::page::{complaint, guest_page};
use crate::password::{Password, SHORTEST};
use crate::reply::{Problem, Reply};
use crate::room::{Cookie, Guest, Room};
use crate::visit::Visit;

const LONGEST_NAME: usize = 80;
/// Said whatever is wrong, so that nobody learns who has an account.
const WRONG: &str = "The e-mail address or the password is not right.";
const TOO_MANY: &str =
    "Too many people are signing in from your address at this moment. Please try again in a few seconds.";

/// Sends somebody who is not signed in to sign in, and back afterwards.
pub(crate) fn ask_to_sign_in(visit: &Visit) -> Reply {
    match visit.target() {
        "/" => Reply::redirect("/sign-in"),
        target => {
            let next: String = url::form_urlencoded::byte_serialize(target.as_bytes()).collect();
            Reply::redirect(&format!("/sign-in?next={next}"))
        }
    }
}

pub(crate) fn sign_in_page(guest: &Guest<'_>, visit: &Visit) -> Result<Reply, Problem> {
    Ok(guest.page(Reply::page(sign_in_content(guest, "", visit.query.get("next"), None))))
}

fn sign_in_content(guest: &Guest<'_>, email: &str, next: &str, wrong: Option<&str>) -> Markup {
    let content = html! {
        section.card.narrow {
            h1 { "Sign in" }
            (complaint(wrong))
            form.fields method="post" action="/sign-in" {
                (token(guest))
                input type="hidden" name="next" value=(next);
                label { "E-mail" input type="email" name="email" required value=(email) autocomplete="username" autofocus; }
                label { "Password" input type="password" name="password" required autocomplete="current-password"; }
                button.primary type="submit" { "Sign in" }
            }
            p.quiet.small {
                "No account, or the password is lost? Ask an administrator for a link. Whoever runs this service can make one with "
                code { "adriaticum accounts" } "."
            }
        }
    };
    guest_page(guest, "Sign in", content)
}

pub(crate) async fn sign_in(guest: Guest<'_>, visit: &mut Visit) -> Result<Reply, Problem> {
    let form = guest.form(visit).await?;
    let refused = |status, sentence| {
        let page = sign_in_content(&guest, form.get("email"), form.get("next"), Some(sentence));
        Ok(guest.page(Reply::page_as(status, page)))
    };
    let console = guest.console;
    let typed = form.get("email").to_lowercase();
    let Some(attempt) = console.sign_ins.turn(visit.visitor, &typed).await else {
        return refused(StatusCode::TOO_MANY_REQUESTS, TOO_MANY);
    };
    let credentials = match typed.parse::<Email>() {
        Ok(email) => console.store.credentials(&email).await?,
        Err(_) => None,
    };
    let (account, hash) = credentials.map(|found| (found.account, found.password)).unzip();
    let right = console.passwords.verify(form.raw("password"), hash).await;
    match account.filter(|_| right) {
        Some(account) => {
            attempt.succeeded();
            let_in(&guest, account, visit, &next(form.get("next")), None).await
        }
        None => {
            attempt.failed();
            refused(StatusCode::UNAUTHORIZED, WRONG)
        }
    }
}

/// Begins a session; one that there may have been is not taken over.
async fn let_in(
    guest: &Guest<'_>,
    account: AccountId,
    visit: &Visit,
    to: &str,
    message: Option<&str>,
) -> Result<Reply, Problem> {
    let begun = guest.console.store.begin_session(account, &visit.origin()).await?.ok_or(Problem::SignedOut)?;
    let reply = match message {
        Some(message) => guest.console.redirect_saying(to, message),
        None => Reply::redirect(to),
    };
    Ok(guest.console.let_in(guest.console.set_cookie(reply, Cookie::Guest, "", 0), &begun.token))
}

/// A page of ours to go on to; anything else is the overview.
fn next(wanted: &str) -> String {
    let ours = wanted.starts_with('/') && !wanted.starts_with("//") && !wanted.contains(['\\', '\n', '\r']);
    if ours { wanted.to_owned() } else { "/".into() }
}

pub(crate) async fn sign_out(room: &Room<'_>, _form: &Form) -> Result<Reply, Problem> {
    room.console.store.end_session(room.viewer(), room.session.id).await?;
    let reply = room.redirect_saying("/sign-in", "You are signed out.");
    Ok(room.console.set_cookie(reply, Cookie::Session, "", 0))
}

/// What somebody typed on the page of a link.
#[derive(Default)]
struct Typed<'a> {
    email: &'a str,
    name: &'a str,
    complaint: Option<&'a str>,
}

pub(crate) async fn link_page(guest: &Guest<'_>, link: &str) -> Result<Reply, Problem> {
    match find(guest, link).await? {
        Some((_, found)) => Ok(guest.page(Reply::page(link_content(guest, &found, link, &Typed::default())))),
        None => Ok(gone(guest)),
    }
}

async fn find(guest: &Guest<'_>, link: &str) -> Result<Option<(Token, Link)>, Problem> {
    let Some(token) = Token::parse(link) else { return Ok(None) };
    let found = guest.console.store.link(&token).await?;
    Ok(found.map(|found| (token, found)))
}

fn gone(guest: &Guest<'_>) -> Reply {
    let content = html! {
        section.card.narrow {
            h1 { "This link does not work any more" }
            p { "It has been used, has expired or was withdrawn. Ask for another one." }
            p { a.button href="/sign-in" { "Sign in" } }
        }
    };
    Reply::page_as(StatusCode::NOT_FOUND, guest_page(guest, "Link", content))
}

fn link_content(guest: &Guest<'_>, link: &Link, secret: &str, typed: &Typed<'_>) -> Markup {
    let (title, button) = match &link.purpose {
        LinkPurpose::SetUp => ("Set up Adriaticum", "Create the administrator"),
        LinkPurpose::Join(_) => ("Join Adriaticum", "Create my account"),
        LinkPurpose::Reset(_) => ("Choose another password", "Save password"),
    };
    let content = html! {
        section.card.narrow {
            h1 { (title) }
            @match &link.purpose {
                LinkPurpose::SetUp => p { "This is the first account; it will be an administrator's, who can invite the others." },
                LinkPurpose::Join(role) => p { (link.made_by) " invited you as " strong { (role) } "." },
                LinkPurpose::Reset(email) => p { "For the account " strong { (email) } ". All its sessions end." },
            }
            (complaint(typed.complaint))
            form.fields method="post" action={ "/welcome/" (secret) } {
                (token(guest))
                @match &link.purpose {
                    LinkPurpose::Reset(email) => input type="hidden" name="email" value=(email) autocomplete="username";,
                    _ => {
                        label { "Your name" input name="name" required maxlength=(LONGEST_NAME) value=(typed.name) autocomplete="name"; }
                        label { "E-mail" input type="email" name="email" required value=(typed.email) autocomplete="username"; }
                    }
                }
                label { "Password"
                    input type="password" name="password" required minlength=(SHORTEST) autocomplete="new-password"
                        aria-describedby="password-hint";
                    span.hint #password-hint { "At least " (SHORTEST) " characters; a few words make a good one." }
                }
                label { "Password again" input type="password" name="again" required autocomplete="new-password"; }
                button.primary type="submit" { (button) }
            }
        }
    };
    guest_page(guest, title, content)
}

pub(crate) async fn use_link(guest: Guest<'_>, link: &str, visit: &mut Visit) -> Result<Reply, Problem> {
    let form = guest.form(visit).await?;
    let Some((token, found)) = find(&guest, link).await? else { return Ok(gone(&guest)) };
    let refused = |sentence: &str| {
        let typed = Typed { email: form.get("email"), name: form.get("name"), complaint: Some(sentence) };
        let page = link_content(&guest, &found, link, &typed);
        Ok(guest.page(Reply::page_as(StatusCode::BAD_REQUEST, page)))
    };
    let chosen = match Password::choose(form.raw("password"), form.raw("again"), form.get("email")) {
        Ok(chosen) => chosen,
        Err(sentence) => return refused(&sentence),
    };
    let store = &guest.console.store;
    let address = visit.visitor.to_string();
    let done = if let LinkPurpose::Reset(_) = found.purpose {
        let hash = guest.console.passwords.hash(chosen).await.ok_or(Problem::Ours)?;
        store.reset_password(&token, &hash, &address).await
    } else {
        let name = form.get("name").to_owned();
        if name.is_empty() || name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
            return refused(&format!("A name has 1 to {LONGEST_NAME} characters."));
        }
        let Ok(email) = form.get("email").parse::<Email>() else {
            return refused("That is not an e-mail address.");
        };
        let password = guest.console.passwords.hash(chosen).await.ok_or(Problem::Ours)?;
        store.use_link(&token, &NewAccount { email, name, password }, &address).await
    };
    match done {
        Ok(account) => let_in(&guest, account, visit, "/", Some("Welcome! You are signed in.")).await,
        Err(AccountError::EmailTaken) => refused("There is an account with this e-mail address already."),
        Err(AccountError::Store(error)) => Err(error.into()),
        Err(_) => Ok(gone(&guest)),
    }
}

fn token(guest: &Guest<'_>) -> Markup {
    html! { input type="hidden" name=(TOKEN) value=(guest.token()); }
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn nobody_is_sent_to_another_site() {
        for (wanted, to) in [
            ("/usage?range=7d", "/usage?range=7d"),
            ("", "/"),
            ("//evil.org", "/"),
            ("https://evil.org", "/"),
            ("/\\evil.org", "/"),
        ] {
            assert_eq!(next(wanted), to);
        }
    }
}
