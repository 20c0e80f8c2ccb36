//! Prices per million tokens, from which costs are computed. Administrators set them.

use maud::{Markup, html};
use store::{Currency, Price, PriceList, Project, TokenPrice};

use crate::page::{
    Area, ConsoleError, ConsoleResult, Draft, Form, Refusal, SignedIn, columns, csrf_field, data_table, empty, found,
};

pub(crate) async fn page(user: &SignedIn<'_>, draft: &Draft) -> ConsoleResult {
    user.admin()?;
    let prices = user.store().prices().list(user.viewer()).await?;
    let actions = html! { a.button href="/usage?range=30d&group=project" { "Usage" } };
    let content = html! {
        p.quiet {
            "With prices, usage is also shown as cost: measured tokens times current prices, computed for every page "
            "view. It is not a bill."
        }
        @if prices.is_empty() {
            (empty("No prices", html! { p { "Costs are shown once a price is set." } }))
        } @else { (table(user, &prices)) }
        (set_form(user, &prices, draft))
    };
    Ok(user.page(Area::Usage, "Prices", actions, content).with_status(draft.status()))
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

fn set_form(user: &SignedIn<'_>, prices: &PriceList, draft: &Draft) -> Markup {
    html! {
        section.card #set {
            h2 { "Set a price" }
            (draft.message())
            form.fields method="post" action="/prices" {
                (csrf_field(user))
                label { "Project (empty: everything without a separate price)"
                    input name="project" maxlength=(Project::MAX_CHARS) value=(draft.get("project")) autocomplete="off";
                }
                div.pair {
                    label { "Prompt, per million"
                        input name="prompt" required inputmode="decimal" value=(draft.get("prompt")) placeholder="0.20" autocomplete="off";
                    }
                    label { "Completion, per million"
                        input name="completion" required inputmode="decimal" value=(draft.get("completion")) placeholder="0.80"
                            autocomplete="off";
                    }
                }
                @match prices.currency {
                    Some(currency) => p.quiet { "All prices are in " (currency) ". To use another currency, remove them first." },
                    None => label { "Currency of all prices"
                        input name="currency" required maxlength="3" value=(draft.get("currency")) placeholder="EUR" autocomplete="off";
                    },
                }
                button.primary type="submit" { "Set" }
            }
        }
    }
}

pub(crate) async fn set(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    let (project, price, currency) = parse(form)?;
    user.store().prices().set(admin, project.as_ref(), price, currency).await?;
    user.redirect_with_message("/prices", "The price was set.")
}

fn parse(form: &Form) -> Result<(Option<Project>, Price, Option<Currency>), Refusal> {
    let project = Project::parse_optional(form.get("project")).map_err(Refusal::from_error)?;
    let amount = |name: &str| form.get(name).parse::<TokenPrice>().map_err(Refusal::from_error);
    let price = Price { prompt: amount("prompt")?, completion: amount("completion")? };
    let currency = match form.get("currency") {
        "" => None,
        code => Some(code.parse::<Currency>().map_err(Refusal::from_error)?),
    };
    Ok((project, price, currency))
}

pub(crate) async fn remove(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let project = Project::parse_optional(form.get("project")).map_err(|_| ConsoleError::Unreadable)?;
    found(user.store().prices().remove(user.admin()?, project.as_ref()).await?)?;
    user.redirect_with_message("/prices", "The price was removed.")
}
