//! The `prices` commands: the price of a million tokens, by project and for everything else.

use serde_json::json;
use store::{Admin, Price, Project, Store, Viewer};

use crate::cli::{PriceOf, PricesCommand};
use crate::error::CliError;
use crate::output::{print_line, print_list};
use crate::settings::Settings;
use crate::storage::{admin, open_store};

pub(crate) async fn run(settings: &Settings, command: PricesCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let operator = Viewer::operator();
    let admin = admin(&operator)?;
    match command {
        PricesCommand::List { json } => list(&store, json).await,
        PricesCommand::Set { of, prompt, completion, currency } => {
            let price = Price { prompt, completion };
            let currency = store.prices().set(admin, of.project.as_ref(), price, currency).await?;
            print_line(&format!("{} costs {prompt} and {completion} {currency} per million tokens.", subject(&of)))
        }
        PricesCommand::Remove { of } => remove(&store, admin, &of).await,
    }
}

fn subject(of: &PriceOf) -> String {
    of.project.as_ref().map_or_else(|| "Everything else".into(), |project| format!("The project {project}"))
}

async fn remove(store: &Store, admin: Admin<'_>, of: &PriceOf) -> Result<(), CliError> {
    match store.prices().remove(admin, of.project.as_ref()).await? {
        true => print_line(&format!("{} no longer has a price.", subject(of))),
        false => Err(CliError::new("there is no such price; `adriaticum prices list` lists all")),
    }
}

async fn list(store: &Store, json: bool) -> Result<(), CliError> {
    let prices = store.prices().list(&Viewer::operator()).await?;
    let empty = "There are no prices. Set one with, for example: adriaticum prices set --default --prompt 0.20 --completion \
                0.80 --currency EUR";
    let headings = ["PROJECT", ">PROMPT", ">COMPLETION", "CURRENCY"];
    let of_projects = prices.projects.iter().map(|(project, price)| (Some(project), price));
    let rows: Vec<(Option<&Project>, &Price)> =
        of_projects.chain(prices.default.iter().map(|price| (None, price))).collect();
    let currency = prices.currency.map(|currency| currency.to_string());
    // Amounts are strings, because they are exact. The project is `null` for everything without a project price.
    let as_json = |(project, price): &(Option<&Project>, &Price)| {
        json!({
            "project": project.map(Project::as_str),
            "prompt": price.prompt.to_string(),
            "completion": price.completion.to_string(),
            "currency": currency,
        })
    };
    print_list(&rows, json, as_json, empty, headings, |(project, price)| {
        let project = project.map_or_else(|| "(everything else)".to_owned(), Project::to_string);
        [project, price.prompt.to_string(), price.completion.to_string(), currency.clone().unwrap_or_default()]
    })
}
