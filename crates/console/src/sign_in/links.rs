//! One-time links: for the first account, for an invitation, or for a password reset.

use http::StatusCode;
use maud::html;
use store::{AccountError, Email, Link, LinkPurpose, NewAccount, PersonName, Proof, SignInError, Token};

use crate::credentials::{MIN_CHARS, NewPassword};
use crate::page::{
    Anonymous, ConsoleError, ConsoleRequest, ConsoleResponse, ConsoleResult, Draft, FormSender, Refusal, csrf_field,
    notice, password_input, sentence,
};

pub(crate) async fn page(visitor: &Anonymous<'_>, link: &str) -> ConsoleResult {
    visitor.console.require_passwords()?;
    let Some((_, found)) = find_link(visitor, link).await? else { return Ok(dead_link_page(visitor)) };
    // An invitation's note is an e-mail address or a name.
    let field = if found.note.parse::<Email>().is_ok() { "email" } else { "name" };
    Ok(page_with(visitor, &found, link, &Draft::with(field, &found.note)))
}

async fn find_link(visitor: &Anonymous<'_>, link: &str) -> ConsoleResult<Option<(Token, Link)>> {
    let Some(token) = Token::parse(link) else { return Ok(None) };
    let found = visitor.console.store.links().find(&token).await?;
    Ok(found.map(|found| (token, found)))
}

fn dead_link_page(visitor: &Anonymous<'_>) -> ConsoleResponse {
    let text = html! { p { "It was used, has expired or was revoked. Ask for a new one." } };
    let content = notice("This link is no longer valid", text, "/sign-in", "Sign in");
    visitor.page("Link", content).with_status(StatusCode::NOT_FOUND)
}

fn page_with(visitor: &Anonymous<'_>, link: &Link, secret: &str, draft: &Draft) -> ConsoleResponse {
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
            (draft.message())
            form.fields method="post" action={ "/welcome/" (secret) } {
                (csrf_field(visitor))
                @match &link.purpose {
                    LinkPurpose::Reset(email) => {
                        input type="hidden" name="email" value=(email) autocomplete="username";
                    }
                    _ => {
                        label {
                            "Your name"
                            input name="name" required maxlength=(PersonName::MAX_CHARS) value=(draft.get("name"))
                                autocomplete="name";
                        }
                        label {
                            "E-mail"
                            input type="email" name="email" required value=(draft.get("email")) autocomplete="username";
                        }
                    }
                }
                label { "Password"
                    input type="password" name="password" required minlength=(MIN_CHARS)
                        autocomplete="new-password" aria-describedby="password-hint";
                    span.hint #password-hint {
                        "At least " (MIN_CHARS) " characters. A few words make a good password."
                    }
                }
                (password_input("Repeat password", "again", "new-password"))
                button.primary type="submit" { (button) }
            }
        }
    };
    visitor.page(title, content).with_status(draft.status())
}

pub(crate) async fn use_link(visitor: Anonymous<'_>, link: &str, request: &mut ConsoleRequest) -> ConsoleResult {
    let form = visitor.form(request).await?;
    visitor.console.require_passwords()?;
    let Some((token, found)) = find_link(&visitor, link).await? else { return Ok(dead_link_page(&visitor)) };
    let refused = |refusal| Ok(page_with(&visitor, &found, link, &form.refused(refusal)));
    let invalid = |text: &str| refused(Refusal::invalid(text));
    let password = match NewPassword::parse(form.raw("password"), form.raw("again"), form.get("email")) {
        Ok(password) => password,
        Err(error) => return invalid(&error.to_string()),
    };
    let console = visitor.console;
    let address = request.client.to_string();
    let attempt = match console.sign_in_throttle.enter(request.client) {
        Ok(attempt) => attempt,
        Err(refusal) => return refused(refusal.into()),
    };
    let hash = async |password| console.passwords.hash(&attempt, password).await.ok_or(ConsoleError::Internal);
    let (changed, hash) = if let LinkPurpose::Reset(_) = found.purpose {
        let hash = hash(password).await?;
        (console.store.links().reset_password(&token, &hash, &address).await, hash)
    } else {
        let name = match PersonName::parse(form.get("name")) {
            Ok(name) => name,
            Err(error) => return invalid(&sentence(&error)),
        };
        let Ok(email) = form.get("email").parse::<Email>() else {
            return invalid("This is not a valid e-mail address.");
        };
        let new = NewAccount { email, name, password: hash(password).await? };
        (console.store.links().use_link(&token, &new, &address).await, new.password)
    };
    match changed {
        Ok(account) => match console.store.sessions().begin(account, &request.origin(), Proof::Password(&hash)).await {
            Ok(session) => {
                Ok(console.signed_in(console.redirect_with_message("/", "Welcome! You are signed in."), &session))
            }
            Err(SignInError::Store(error)) => Err(error.into()),
            // The link replaces the password, not the second factor.
            Err(_) => Ok(console.redirect_with_message("/sign-in", "The password was saved. Sign in with it.")),
        },
        Err(AccountError::EmailTaken) => invalid("An account with this e-mail address already exists."),
        Err(AccountError::Store(error)) => Err(error.into()),
        Err(_) => Ok(dead_link_page(&visitor)),
    }
}
