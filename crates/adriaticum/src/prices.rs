//! The `prices` commands: the price of a million tokens, by project and for everything else.

use serde::Serialize;
use store::{Admin, Price, PriceList, Store, Viewer};

use crate::cli::{PriceOf, PricesCommand};
use crate::error::CliError;
use crate::output::{print_line, print_list};
use crate::settings::Settings;
use crate::storage::open_store;

pub(crate) async fn run(settings: &Settings, command: PricesCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let operator = Viewer::operator();
    let admin = operator.admin().ok_or_else(|| CliError::new("the operator may do everything"))?;
    match command {
        PricesCommand::List { json } => list(&store, json).await,
        PricesCommand::Set { of, prompt, completion, currency } => {
            let price = Price { prompt, completion };
            let set = store.prices().set(admin, of.project.as_ref(), price, currency).await;
            let currency = set.map_err(CliError::from_error)?;
            print_line(&format!("{} costs {prompt} and {completion} {currency} per million tokens.", subject(&of)))
        }
        PricesCommand::Remove { of } => remove(&store, admin, &of).await,
    }
}

fn subject(of: &PriceOf) -> String {
    of.project.as_ref().map_or_else(|| "Everything else".into(), |project| format!("The project {project}"))
}

async fn remove(store: &Store, admin: Admin<'_>, of: &PriceOf) -> Result<(), CliError> {
    let removed = store.prices().remove(admin, of.project.as_ref()).await;
    match removed.map_err(CliError::from_error)? {
        true => print_line(&format!("{} no longer has a price.", subject(of))),
        false => Err(CliError::new("there is no such price; `adriaticum prices list` lists all")),
    }
}

async fn list(store: &Store, json: bool) -> Result<(), CliError> {
    let prices = store.prices().list(&Viewer::operator()).await?;
    let empty = "There are no prices. Set one with, for example: adriaticum prices set --default --prompt 0.20 --completion \
                0.80 --currency EUR";
    let headings = ["PROJECT", ">PROMPT", ">COMPLETION", "CURRENCY"];
    print_list(&rows(&prices), json.then_some(|row| row), empty, headings, |row| {
        let project = row.project.unwrap_or("(everything else)").to_owned();
        [project, row.prompt.clone(), row.completion.clone(), row.currency.clone().unwrap_or_default()]
    })
}

/// Amounts are strings, because they are exact.
#[derive(Serialize)]
struct JsonPrice<'a> {
    /// `null` for everything without a project price.
    project: Option<&'a str>,
    prompt: String,
    completion: String,
    currency: Option<String>,
}

fn rows(prices: &PriceList) -> Vec<JsonPrice<'_>> {
    let row = |project, price: &Price| JsonPrice {
        project,
        prompt: price.prompt.to_string(),
        completion: price.completion.to_string(),
        currency: prices.currency.map(|currency| currency.to_string()),
    };
    let of_projects = prices.projects.iter().map(|(project, price)| row(Some(project.as_str()), price));
    of_projects.chain(prices.default.iter().map(|price| row(None, price))).collect()
}
