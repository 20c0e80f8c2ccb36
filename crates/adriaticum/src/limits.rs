//! The `limits` commands: budgets, rates and requests in flight of a key, a person, each person or everyone.

use format::{number, number_or_dash, rfc3339_seconds};
use serde_json::{Value, json};
use store::{Admin, BudgetUse, Limit, LimitUse, Scope, Store, Viewer};

use crate::accounts::find_account;
use crate::cli::{LimitScope, LimitsCommand};
use crate::error::CliError;
use crate::output::{print_line, print_list};
use crate::settings::Settings;
use crate::storage::{admin, open_store};

pub(crate) async fn run(settings: &Settings, command: LimitsCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let operator = Viewer::operator();
    let admin = admin(&operator)?;
    match command {
        LimitsCommand::List { json } => list(&store, json).await,
        LimitsCommand::Set { of, kind, amount } => {
            let scope = find(&store, admin, &of).await?;
            match store.limits().set(admin, Limit { scope, kind, amount }).await? {
                true if amount == 0 => print_line("Limited to 0: every request is refused, from the next one on."),
                true => print_line(&format!(
                    "Limited to {}. This applies from the next request on.",
                    format::limit(kind, amount)
                )),
                false => Err(CliError::new("there is no such key; `adriaticum keys list` lists all")),
            }
        }
        LimitsCommand::Remove { of, kind } => {
            let scope = find(&store, admin, &of).await?;
            match store.limits().remove(admin, scope, kind).await? {
                true => print_line(&format!("The limit of {} is removed.", kind.describe())),
                false => Err(CliError::new("there is no such limit; `adriaticum limits list` lists all")),
            }
        }
    }
}

async fn find(store: &Store, admin: Admin<'_>, of: &LimitScope) -> Result<Scope, CliError> {
    match (of.key, &of.person) {
        (Some(key), _) => Ok(Scope::Key(key)),
        (None, Some(email)) => Ok(Scope::Owner(find_account(store, admin, email).await?.id)),
        (None, None) if of.each_person => Ok(Scope::EachPerson),
        (None, None) => Ok(Scope::Everyone),
    }
}

/// A limit and its subject.
struct LimitRow {
    limit: Limit,
    budget: Option<BudgetUse>,
    /// `key`, `person`, `each person` or `everyone`.
    of: &'static str,
    /// The key's id and name, or the person's e-mail address.
    whose: Option<String>,
}

async fn rows(store: &Store) -> Result<Vec<LimitRow>, CliError> {
    let row = |LimitUse { limit, name, budget }| {
        let (of, whose) = match limit.scope {
            Scope::Everyone => ("everyone", None),
            Scope::EachPerson => ("each person", None),
            Scope::Owner(id) => ("person", Some(name.unwrap_or_else(|| id.to_string()))),
            Scope::Key(id) => ("key", Some(format!("{id} {}", name.unwrap_or_default()).trim_end().to_owned())),
        };
        LimitRow { limit, budget, of, whose }
    };
    Ok(store.limits().list(&Viewer::operator()).await?.into_iter().map(row).collect())
}

async fn list(store: &Store, json: bool) -> Result<(), CliError> {
    let empty =
        "There are no limits. Set one with, for example: adriaticum limits set --everyone tokens-per-month 1000000";
    let headings = ["OF", "WHOSE", "LIMIT", "AMOUNT", "USED", "LEFT", "FORECAST", "UNMEASURED", "RENEWS"];
    let dash = || "–".to_owned();
    print_list(&rows(store).await?, json, as_json, empty, headings, |row| {
        let LimitRow { limit, budget, of, whose } = row;
        let figure = |get: fn(&BudgetUse) -> Option<u64>| number_or_dash(budget.as_ref().and_then(get));
        [
            (*of).to_owned(),
            whose.clone().unwrap_or_else(dash),
            limit.kind.to_string(),
            number(limit.amount),
            figure(|budget| Some(budget.used)),
            figure(|budget| Some(budget.left)),
            figure(|budget| budget.forecast),
            figure(|budget| Some(budget.unmeasured)),
            budget.map_or_else(dash, |budget| rfc3339_seconds(budget.renews_at)),
        ]
    })
}

fn as_json(LimitRow { limit, budget, of, whose }: &LimitRow) -> Value {
    let id = match limit.scope {
        Scope::Everyone | Scope::EachPerson => None,
        Scope::Owner(id) => Some(id.to_string()),
        Scope::Key(id) => Some(id.to_string()),
    };
    json!({
        "of": of,
        "id": id,
        "whose": whose,
        "limit": limit.kind.as_str(),
        "amount": limit.amount,
        "used": budget.map(|budget| budget.used),
        "left": budget.map(|budget| budget.left),
        // The usage at the end of the period, at the current rate.
        "forecast": budget.and_then(|budget| budget.forecast),
        // Requests whose tokens no runtime measured; they are not in `used`.
        "unmeasured_requests": budget.map(|budget| budget.unmeasured),
        "renews_at": budget.map(|budget| rfc3339_seconds(budget.renews_at)),
    })
}
