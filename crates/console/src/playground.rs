//! A real request from the browser, through the API's own handler, in the name of whoever is signed in.

use bytes::Bytes;
use chat::limits;
use maud::html;

use crate::components::heading;
use crate::error::{ConsoleError, ConsoleResult};
use crate::layout::Area;
use crate::response::ConsoleResponse;
use crate::session::SignedIn;

pub(crate) fn page(user: &SignedIn<'_>) -> ConsoleResult {
    let content = html! {
        (heading("Playground", html! {}))
        p.quiet {
            "Sends a real request to the API. It is recorded under a key called Playground in your name; "
            "message text is not stored."
        }
        noscript { p.error { "The playground needs JavaScript. The overview has an example for curl." } }
        div.playground data-token=(user.csrf_token()) data-model=(chat::MODEL) {
            form.card.fields #ask {
                label {
                    "System message"
                    textarea name="system" rows="3" maxlength=(limits::CONTENT_CHARS) placeholder="optional" {}
                }
                label {
                    "Message"
                    textarea name="user" rows="6" required maxlength=(limits::CONTENT_CHARS) { "What is the Adriatic?" }
                }
                div.pair {
                    label { "Temperature"
                        input type="number" name="temperature" step="0.1" value="0.7" required
                            min=(limits::TEMPERATURE.start()) max=(limits::TEMPERATURE.end());
                    }
                    label { "Max tokens"
                        input type="number" name="max_tokens" value="128" required
                            min=(limits::MAX_TOKENS.start()) max=(limits::MAX_TOKENS.end());
                    }
                }
                button.primary type="submit" disabled { "Send" }
            }
            section.card.answer aria-label="Response" {
                h2 { "Response" }
                div #answer role="status" aria-live="polite" { p.quiet { "No request sent yet." } }
                dl.facts #figures hidden {}
                div #sources hidden { h3 { "Sources" } ol.sources {} }
                details { summary { "Request JSON" } pre tabindex="0" { code #sent {} } }
                details { summary { "Response JSON" } pre tabindex="0" { code #received {} } }
            }
        }
    };
    Ok(user.page(Area::Playground, "Playground", content))
}

pub(crate) async fn complete(user: &SignedIn<'_>, worker: &api::Worker, body: Bytes) -> ConsoleResult {
    let caller = user.console.store.playground_caller(user.viewer()).await?.ok_or(ConsoleError::NotAllowed)?;
    Ok(ConsoleResponse::from_api(api::handle_playground(worker, caller, body).await))
}
