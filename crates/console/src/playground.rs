//! A real request from the browser, along the same walk as any other, in the name of whoever is signed in.

use bytes::Bytes;
use chat::limits;
use maud::html;

use crate::page::{self, Area};
use crate::reply::{Problem, Reply};
use crate::room::Room;

pub(crate) fn page(room: &Room<'_>) -> Result<Reply, Problem> {
    let content = html! {
        (page::heading("Playground", html! {}))
        p.quiet {
            "Sends a real request as the API would get it. It is recorded in your name, with the key called Playground; what is said is not kept."
        }
        noscript { p.complaint { "The playground needs JavaScript. The overview has a request for curl." } }
        div.playground data-token=(room.token()) data-model=(chat::MODEL) {
            form.card.fields #ask {
                label { "System message" textarea name="system" rows="3" maxlength=(limits::CONTENT_CHARS) placeholder="optional" {} }
                label { "Message" textarea name="user" rows="6" required maxlength=(limits::CONTENT_CHARS) { "What is the Adriatic?" } }
                div.pair {
                    label { "Temperature"
                        input type="number" name="temperature" min=(limits::TEMPERATURE.start()) max=(limits::TEMPERATURE.end())
                            step="0.1" value="0.7" required;
                    }
                    label { "Tokens at the most"
                        input type="number" name="max_tokens" min=(limits::MAX_TOKENS.start()) max=(limits::MAX_TOKENS.end())
                            value="128" required;
                    }
                }
                button.primary type="submit" disabled { "Send" }
            }
            section.card.answer aria-label="Answer" {
                h2 { "Answer" }
                div #answer role="status" aria-live="polite" { p.quiet { "Nothing sent yet." } }
                dl.facts #figures hidden {}
                div #sources hidden { h3 { "Sources" } ol.sources {} }
                details { summary { "Request" } pre tabindex="0" { code #sent {} } }
                details { summary { "Response" } pre tabindex="0" { code #received {} } }
            }
        }
    };
    Ok(Reply::page(page::page(room, Area::Playground, "Playground", content)))
}

pub(crate) async fn complete(room: &Room<'_>, desk: &api::Worker, body: Bytes) -> Result<Reply, Problem> {
    let caller = room.console.store.playground_caller(room.viewer()).await?.ok_or(Problem::NotAllowed)?;
    Ok(Reply::from_api(api::handle_playground(desk, caller, body).await))
}
