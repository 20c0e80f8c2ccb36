//! One-time links: for the first account, for an invitation, or for a password reset.

use http::StatusCode;
use maud::html;
use store::{AccountError, Email, Link, LinkPurpose, NewAccount, PersonName, Proof, SignInError, Token};

use crate::credentials::password::{self, NewPassword};
use crate::page::components::{anonymous_csrf_field, form_error, sentence};
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::layout;
use crate::page::request::ConsoleRequest;
use crate::page::response::ConsoleResponse;
use crate::page::session::Anonymous;

#[derive(Default)]
struct LinkForm<'a> {
    email: &'a str,
    name: &'a str,
    error: Option<&'a str>,
}

impl<'a> LinkForm<'a> {
    /// Prefilled from the invitation's note: an e-mail address or a name.
    fn invited(note: &'a str) -> Self {
        match note.parse::<Email>() {
            Ok(_) => Self { email: note, ..Self::default() },
            Err(_) => Self { name: note, ..Self::default() },
        }
    }
}

pub(crate) async fn page(visitor: &Anonymous<'_>, link: &str) -> ConsoleResult {
    visitor.console.require_passwords()?;
    match find_link(visitor, link).await? {
        Some((_, found)) => Ok(page_with(visitor, &found, link, &LinkForm::invited(&found.note))),
        None => Ok(dead_link_page(visitor)),
    }
}

async fn find_link(visitor: &Anonymous<'_>, link: &str) -> ConsoleResult<Option<(Token, Link)>> {
    let Some(token) = Token::parse(link) else { return Ok(None) };
    let found = visitor.console.store.link(&token).await?;
    Ok(found.map(|found| (token, found)))
}

fn dead_link_page(visitor: &Anonymous<'_>) -> ConsoleResponse {
    let content = html! {
        section.card.narrow {
            h1 { "This link is no longer valid" }
            p { "It was used, has expired or was revoked. Ask for a new one." }
            p { a.button href="/sign-in" { "Sign in" } }
        }
    };
    ConsoleResponse::page(layout::anonymous_page(visitor, "Link", content)).with_status(StatusCode::NOT_FOUND)
}

fn page_with(visitor: &Anonymous<'_>, link: &Link, secret: &str, form: &LinkForm<'_>) -> ConsoleResponse {
    let (title, button) = match &link.purpose {
        LinkPurpose::SetUp => ("Set up Adriaticum", "Create administrator"),
        LinkPurpose::Join(_) => ("Join Adriaticum", "Create account"),
        LinkPurpose::Reset(_) => ("Reset your password", "Save password"),
    };
    let content = html! {
        section.card.narrow {
            h1 { (title) }
            @match &link.purpose {
                LinkPurpose::SetUp => p { "This creates the first account: an administrator, who can invite others." },
                LinkPurpose::Join(role) => p { (link.made_by) " invited you as " strong { (role) } "." },
                LinkPurpose::Reset(email) => p {
                    "For the account " strong { (email) } ". It will be signed out of all sessions."
                },
            }
            (form_error(form.error))
            form.fields method="post" action={ "/welcome/" (secret) } {
                (anonymous_csrf_field(visitor))
                @match &link.purpose {
                    LinkPurpose::Reset(email) => {
                        input type="hidden" name="email" value=(email) autocomplete="username";
                    }
                    _ => {
                        label {
                            "Your name"
                            input name="name" required maxlength=(PersonName::MAX_CHARS) value=(form.name)
                                autocomplete="name";
                        }
                        label {
                            "E-mail"
                            input type="email" name="email" required value=(form.email) autocomplete="username";
                        }
                    }
                }
                label { "Password"
                    input type="password" name="password" required minlength=(password::MIN_CHARS)
                        autocomplete="new-password" aria-describedby="password-hint";
                    span.hint #password-hint {
                        "At least " (password::MIN_CHARS) " characters. A few words make a good password."
                    }
                }
                label { "Repeat password" input type="password" name="again" required autocomplete="new-password"; }
                button.primary type="submit" { (button) }
            }
        }
    };
    visitor.page(title, content)
}

pub(crate) async fn use_link(visitor: Anonymous<'_>, link: &str, request: &mut ConsoleRequest) -> ConsoleResult {
    let form = visitor.form(request).await?;
    visitor.console.require_passwords()?;
    let Some((token, found)) = find_link(&visitor, link).await? else { return Ok(dead_link_page(&visitor)) };
    let refused_with = |status, error: &str| {
        let form = LinkForm { email: form.get("email"), name: form.get("name"), error: Some(error) };
        Ok(page_with(&visitor, &found, link, &form).with_status(status))
    };
    let refused = |error: &str| refused_with(StatusCode::BAD_REQUEST, error);
    let password = match NewPassword::parse(form.raw("password"), form.raw("again"), form.get("email")) {
        Ok(password) => password,
        Err(error) => return refused(&error.to_string()),
    };
    let console = visitor.console;
    let address = request.client.to_string();
    let attempt = match console.sign_in_throttle.enter(request.client) {
        Ok(attempt) => attempt,
        Err(refusal) => return refused_with(refusal.status(), refusal.message()),
    };
    let hash = async |password| console.passwords.hash(&attempt, password).await.ok_or(ConsoleError::Internal);
    let (changed, hash) = if let LinkPurpose::Reset(_) = found.purpose {
        let hash = hash(password).await?;
        (console.store.reset_password(&token, &hash, &address).await, hash)
    } else {
        let name = match PersonName::parse(form.get("name")) {
            Ok(name) => name,
            Err(error) => return refused(&sentence(&error)),
        };
        let Ok(email) = form.get("email").parse::<Email>() else {
            return refused("This is not a valid e-mail address.");
        };
        let new = NewAccount { email, name, password: hash(password).await? };
        (console.store.use_link(&token, &new, &address).await, new.password)
    };
    match changed {
        Ok(account) => match console.store.begin_session(account, &request.origin(), Proof::Password(&hash)).await {
            Ok(begun) => {
                Ok(console.signed_in(console.redirect_with_message("/", "Welcome! You are signed in."), &begun))
            }
            Err(SignInError::Store(error)) => Err(error.into()),
            // The link replaces the password, not the second factor.
            Err(_) => Ok(console.redirect_with_message("/sign-in", "The password was saved. Sign in with it.")),
        },
        Err(AccountError::EmailTaken) => refused("An account with this e-mail address already exists."),
        Err(AccountError::Store(error)) => Err(error.into()),
        Err(_) => Ok(dead_link_page(&visitor)),
    }
}
