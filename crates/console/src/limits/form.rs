//! The forms that set and remove limits, and those fields of them that other forms include.

use chat::KeyId;
use format::rfc3339_seconds;
use maud::{Markup, html};
use store::{Email, Limit, LimitKind, Scope};

use crate::page::{ConsoleError, ConsoleResult, Form, Refusal, SignedIn, csrf_field, found, select};
use crate::people::find_by_email;

/// Form values of scopes that cover several people.
pub(crate) const EVERYONE: &str = "everyone";
pub(crate) const EACH_PERSON: &str = "each-person";

pub(crate) fn set_form(user: &SignedIn<'_>, scope: &Markup, back: &str) -> Markup {
    html! {
        form.fields method="post" action="/limits" {
            (csrf_field(user))
            input type="hidden" name="back" value=(back);
            (scope)
            (kinds("Limit"))
            label { "Amount"
                input name="amount" required inputmode="numeric" pattern="[0-9,. ]+" autocomplete="off"
                    placeholder="1,000,000";
            }
            button.primary type="submit" { "Set limit" }
        }
    }
}

fn kinds(label: &str) -> Markup {
    select(label, "kind", LimitKind::ALL.map(|kind| (kind.as_str(), kind.describe())), "")
}

/// Fields for an optional limit, as a part of another form.
pub(crate) fn fields(amount: &str) -> Markup {
    html! {
        label { "Limit (optional)"
            input name="amount" inputmode="numeric" pattern="[0-9,. ]*" autocomplete="off" value=(amount)
                placeholder="none";
        }
        (kinds("Kind of limit"))
    }
}

/// The optional limit in another form. Only administrators set limits.
pub(crate) fn optional(user: &SignedIn<'_>, form: &Form) -> Result<Option<(LimitKind, u64)>, Refusal> {
    if !user.is_admin() || form.get("amount").trim().is_empty() {
        return Ok(None);
    }
    let amount = Limit::parse_amount(form.get("amount")).map_err(Refusal::from_error)?;
    let kind = form.get("kind").parse().map_err(|_| Refusal::invalid("Choose a kind of limit."))?;
    Ok(Some((kind, amount)))
}

pub(crate) fn remove_form(user: &SignedIn<'_>, limit: &Limit, back: &str) -> Markup {
    html! {
        form.inline method="post" action="/limits/remove" {
            (csrf_field(user))
            input type="hidden" name="back" value=(back);
            input type="hidden" name="scope" value=(scope_value(limit.scope));
            input type="hidden" name="kind" value=(limit.kind);
            button.plain type="submit" { "Remove" span.hidden { " " (limit.kind.describe()) } }
        }
    }
}

pub(crate) async fn set(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    let (scope, kind) = (chosen_scope(user, form).await?, parse_kind(form)?);
    let amount = Limit::parse_amount(form.get("amount")).map_err(Refusal::from_error)?;
    found(user.store().limits().set(admin, Limit { scope, kind, amount }).await?)?;
    let message = format!("Limited to {}. This applies from the next request on.", format::limit(kind, amount));
    user.redirect_with_message(&back(form), &message)
}

/// Queues a test notification for the webhook.
pub(crate) async fn test_notification(user: &SignedIn<'_>, _form: &Form) -> ConsoleResult {
    user.admin()?;
    found(user.console.settings.webhook)?;
    let now = user.store().now();
    let requested_by = user.viewer().account().map(|account| account.email.as_str());
    let event = serde_json::json!({
        "type": "test", "timestamp": rfc3339_seconds(now), "data": { "requested_by": requested_by },
    });
    user.store().notices().add(&format!("test/{}", now.as_millis()), &event.to_string()).await?;
    let message =
        "A test notification is sent within seconds. If the webhook does not accept it, the log has the reason.";
    user.redirect_with_message("/limits", message)
}

pub(crate) async fn remove(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let (scope, kind) = (parse_scope(form)?, parse_kind(form)?);
    found(user.store().limits().remove(user.admin()?, scope, kind).await?)?;
    user.redirect_with_message(&back(form), &format!("The limit of {} was removed.", kind.describe()))
}

/// The value of a scope in a form.
pub(crate) fn scope_value(scope: Scope) -> String {
    match scope {
        Scope::Everyone => EVERYONE.into(),
        Scope::EachPerson => EACH_PERSON.into(),
        other => other.to_string(),
    }
}

/// People are chosen by e-mail address.
async fn chosen_scope(user: &SignedIn<'_>, form: &Form) -> ConsoleResult<Scope> {
    match form.get("scope") {
        email if email.parse::<Email>().is_ok() => Ok(Scope::Owner(find_by_email(user, email).await?.id)),
        _ => parse_scope(form),
    }
}

fn parse_scope(form: &Form) -> ConsoleResult<Scope> {
    match form.get("scope") {
        EVERYONE | "" => Ok(Scope::Everyone),
        EACH_PERSON => Ok(Scope::EachPerson),
        other => other.parse().map_err(|_| ConsoleError::Unreadable),
    }
}

fn parse_kind(form: &Form) -> ConsoleResult<LimitKind> {
    form.get("kind").parse().map_err(|_| ConsoleError::Unreadable)
}

/// Where to go afterwards: a key's page or the list of limits, so a form cannot redirect elsewhere.
fn back(form: &Form) -> String {
    let key = form.get("back").strip_prefix("/keys/").and_then(|id| id.parse::<KeyId>().ok());
    key.map_or_else(|| "/limits".into(), |key| format!("/keys/{key}"))
}
