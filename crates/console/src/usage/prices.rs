//! Prices per million tokens, from which costs are computed. Administrators set them.

use http::StatusCode;
use maud::{Markup, html};
use store::{Currency, Price, PriceError, PriceList, Project, TokenPrice};

use crate::page::components::{columns, csrf_field, data_table, empty, form_error, heading, sentence};
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::form::Form;
use crate::page::layout::Area;
use crate::page::session::SignedIn;

/// The form as it was typed, and its error.
#[derive(Default)]
struct NewPrice<'a> {
    project: &'a str,
    prompt: &'a str,
    completion: &'a str,
    currency: &'a str,
    error: Option<String>,
}

pub(crate) async fn page(user: &SignedIn<'_>) -> ConsoleResult {
    page_with(user, &NewPrice::default()).await
}

async fn page_with(user: &SignedIn<'_>, new: &NewPrice<'_>) -> ConsoleResult {
    user.admin()?;
    let prices = user.console.store.prices(user.viewer()).await?;
    let content = html! {
        (heading("Prices", html! { a.button href="/usage?range=30d&group=project" { "Usage" } }))
        p.quiet {
            "With prices, usage is also shown as cost: measured tokens times current prices, computed for every page "
            "view. It is not a bill."
        }
        @if prices.is_empty() {
            (empty("No prices", html! { p { "Costs are shown once a price is set." } }))
        } @else { (table(user, &prices)) }
        (set_form(user, &prices, new))
    };
    Ok(user.page(Area::Usage, "Prices", content))
}

fn table(user: &SignedIn<'_>, prices: &PriceList) -> Markup {
    let currency = prices.currency.map(|currency| currency.to_string()).unwrap_or_default();
    let row = |project: Option<&Project>, price: &Price| {
        html! {
            tr {
                th scope="row" data-label="Project" {
                    @match project { Some(project) => (project), None => "Everything else" }
                }
                td.right data-label="Prompt" { (price.prompt) " " (currency) }
                td.right data-label="Completion" { (price.completion) " " (currency) }
                td.actions {
                    form.inline method="post" action="/prices/remove" {
                        (csrf_field(user))
                        input type="hidden" name="project" value=(project.map_or("", Project::as_str));
                        button.plain type="submit" {
                            "Remove" span.hidden { " the price of " (project.map_or("everything else", Project::as_str)) }
                        }
                    }
                }
            }
        }
    };
    data_table(
        "Prices",
        columns(&["Project", ">Per million prompt tokens", ">Per million completion tokens", ""]),
        html! {
            @for (project, price) in &prices.projects { (row(Some(project), price)) }
            @if let Some(price) = &prices.default { (row(None, price)) }
        },
    )
}

fn set_form(user: &SignedIn<'_>, prices: &PriceList, new: &NewPrice<'_>) -> Markup {
    html! {
        section.card #set {
            h2 { "Set a price" }
            (form_error(new.error.as_deref()))
            form.fields method="post" action="/prices" {
                (csrf_field(user))
                label { "Project (empty: everything without a separate price)"
                    input name="project" maxlength=(Project::MAX_CHARS) value=(new.project) autocomplete="off";
                }
                div.pair {
                    label { "Prompt, per million"
                        input name="prompt" required inputmode="decimal" value=(new.prompt) placeholder="0.20" autocomplete="off";
                    }
                    label { "Completion, per million"
                        input name="completion" required inputmode="decimal" value=(new.completion) placeholder="0.80"
                            autocomplete="off";
                    }
                }
                @match prices.currency {
                    Some(currency) => p.quiet { "All prices are in " (currency) ". To use another currency, remove them first." },
                    None => label { "Currency of all prices"
                        input name="currency" required maxlength="3" value=(new.currency) placeholder="EUR" autocomplete="off";
                    },
                }
                button.primary type="submit" { "Set" }
            }
        }
    }
}

pub(crate) async fn set(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    let error = match parse(form) {
        Err(error) => error,
        Ok((project, price, currency)) => {
            match user.console.store.set_price(admin, project.as_ref(), price, currency).await {
                Ok(_) => return Ok(user.redirect_with_message("/prices", "The price was set.")),
                Err(PriceError::Store(error)) => return Err(error.into()),
                Err(error) => sentence(&error),
            }
        }
    };
    let new = NewPrice {
        project: form.get("project"),
        prompt: form.get("prompt"),
        completion: form.get("completion"),
        currency: form.get("currency"),
        error: Some(error),
    };
    Ok(page_with(user, &new).await?.with_status(StatusCode::BAD_REQUEST))
}

fn parse(form: &Form) -> Result<(Option<Project>, Price, Option<Currency>), String> {
    let project = Project::parse_optional(form.get("project")).map_err(|error| sentence(&error))?;
    let amount = |name: &str| form.get(name).parse::<TokenPrice>().map_err(|error| sentence(&error));
    let price = Price { prompt: amount("prompt")?, completion: amount("completion")? };
    let currency = match form.get("currency") {
        "" => None,
        code => Some(code.parse::<Currency>().map_err(|error| sentence(&error))?),
    };
    Ok((project, price, currency))
}

pub(crate) async fn remove(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let project = Project::parse_optional(form.get("project")).map_err(|_| ConsoleError::Unreadable)?;
    match user.console.store.remove_price(user.admin()?, project.as_ref()).await {
        Ok(true) => Ok(user.redirect_with_message("/prices", "The price was removed.")),
        Ok(false) => Err(ConsoleError::NotFound),
        Err(PriceError::Store(error)) => Err(error.into()),
        Err(_) => Err(ConsoleError::NotAllowed),
    }
}
