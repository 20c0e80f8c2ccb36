//! The playground: conversations from the browser, completed by the API's handler for the signed-in person. The script
//! keeps the conversation only in the page. The server renders the first messages, the limits and the templates.

use bytes::Bytes;
use chat::{MaxTokens, Role, Temperature, limits};
use format::number;
use maud::{Markup, html};

use crate::page::{Area, ConsoleError, ConsoleResponse, ConsoleResult, FormSender, SignedIn, assets};
use crate::playground::snippets;

pub(crate) fn page(user: &SignedIn<'_>) -> ConsoleResult {
    let content = html! {
        p.quiet {
            "Sends real requests to the API. They are recorded under your key Playground. "
            "Message text is stored neither here nor in your browser."
        }
        noscript {
            p.error { "The playground needs JavaScript. " a href="/#request" { "Overview" } " has a request to copy." }
        }
        form.playground #playground autocomplete="off" novalidate
            data-token=(user.csrf_token()) data-model=(chat::MODEL)
            data-max-messages=(limits::MESSAGES.end()) data-max-chars=(limits::CONTENT_CHARS)
            data-max-total=(limits::TOTAL_CHARS) {
            section.card.conversation aria-label="Conversation" {
                ol.turns #turns { (turn(Role::System)) (turn(Role::User)) }
                template #turn { (turn(Role::User)) }
                (controls())
            }
            (parameters())
            (code(&user.console.settings.api_base_url))
        }
        script type="module" src=(assets::PLAYGROUND.path()) {}
    };
    Ok(user.page(Area::Playground, "Playground", html! {}, content))
}

/// One message. The script numbers the messages, and shows answers with their figures and sources.
fn turn(role: Role) -> Markup {
    html! {
        li.turn {
            div.turn-head {
                select name="role" aria-label="Role" {
                    @for each in Role::ALL { option selected[each == role] { (each.as_str()) } }
                }
                span.quiet.small data-part="count" {}
                div.actions {
                    button.plain type="button" data-action="edit" hidden { "Edit" }
                    button.plain type="button" data-action="insert" { "Insert above" }
                    button.plain type="button" data-action="remove" { "Remove" }
                }
            }
            textarea name="content" rows="2" aria-label="Message" {}
            p.problem data-part="problem" hidden {}
            div data-part="answer" hidden {
                div.text data-part="text" {}
                div data-part="sources" hidden { h3 { "Sources" } ol.sources {} }
                p.quiet.small { span data-part="figures" {} span data-part="edited" hidden { " · edited" } }
                details { summary.small { "Response JSON" } pre tabindex="0" { code data-part="received" {} } }
            }
        }
    }
}

fn controls() -> Markup {
    html! {
        p.problem #problem role="alert" hidden {}
        div.actions {
            button.primary #run type="submit" disabled { "Run" }
            button.danger #stop type="button" hidden { "Stop" }
            button #add type="button" disabled { "Add message" }
            button #clear type="button" disabled { "Clear" }
            button.plain #undo type="button" hidden { "Undo" }
            span.quiet.small #elapsed role="timer" {}
        }
        p.quiet.small {
            span #size {
                "0 of " (limits::MESSAGES.end()) " messages, 0 of " (number(limits::TOTAL_CHARS as u64)) " characters."
            }
            " Empty messages are not sent. "
            kbd { "Ctrl" } "+" kbd { "Enter" } " runs, " kbd { "Esc" } " stops."
        }
        p.hidden #announcement role="status" {}
    }
}

/// An empty field is not sent, so the API's default applies.
fn parameters() -> Markup {
    let (temperature, max_tokens) = (&limits::TEMPERATURE, &limits::MAX_TOKENS);
    html! {
        section.card.parameters aria-labelledby="parameters" {
            h2 #parameters { "Parameters" }
            label {
                "Temperature"
                input type="number" name="temperature" step="0.1" inputmode="decimal"
                    min=(temperature.start()) max=(temperature.end())
                    placeholder={ (Temperature::default().get()) } aria-describedby="about-temperature";
                span.hint #about-temperature {
                    (temperature.start()) " to " (temperature.end()) "; " (Temperature::default().get()) " if empty"
                }
                span.problem data-for="temperature" hidden {}
            }
            label {
                "Max tokens"
                input type="number" name="max_tokens" step="1" inputmode="numeric"
                    min=(max_tokens.start()) max=(max_tokens.end())
                    placeholder={ (MaxTokens::default().get()) } aria-describedby="about-max-tokens";
                span.hint #about-max-tokens {
                    (max_tokens.start()) " to " (number((*max_tokens.end()).into())) " tokens of the answer; "
                    (MaxTokens::default().get()) " if empty"
                }
                span.problem data-for="max_tokens" hidden {}
            }
        }
    }
}

fn code(base_url: &str) -> Markup {
    let templates = snippets::templates(base_url);
    html! {
        section.card.code aria-labelledby="code-title" {
            h2 #code-title { "Code" }
            fieldset.tabs {
                legend.hidden { "Language" }
                @for (at, (language, _)) in templates.iter().enumerate() {
                    label { input type="radio" name="language" value=(language) checked[at == 0]; (language) }
                }
            }
            div.copyable {
                pre tabindex="0" { code #code {} }
                button.plain type="button" data-copy="code" { "Copy" }
            }
            p.quiet.small {
                "The last request as a program, or the request above once you change it. It reads an API key from "
                code { "ADRIATICUM_API_KEY" } "."
            }
            @for (language, template) in &templates { template data-language=(language) { (template) } }
        }
    }
}

pub(crate) async fn complete(user: &SignedIn<'_>, worker: &api::Worker, body: Bytes) -> ConsoleResult {
    let caller = user.store().keys().playground_caller(user.viewer()).await?.ok_or(ConsoleError::NotAllowed)?;
    Ok(ConsoleResponse::from_api(api::handle_playground(worker, caller, body).await))
}
