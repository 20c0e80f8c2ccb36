//! What the person at the terminal is told at the start: where everything is, the first key, and how to use it.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use chat::ApiKey;
use grounding::Grounder;
use runtimes::{Availability, MemberStatus, Pool};
use store::{NewKey, Store, Viewer};

use crate::doors::{ConsoleDoor, Doors};
use crate::error::CliError;
use crate::facts;
use crate::serve::Backing;
use crate::settings::Settings;

/// How often one looks whether the first request could be answered; a runtime that fails is not to be pestered.
const LOOK: Duration = Duration::from_secs(1);

/// What is told once, and to nobody else.
pub(crate) struct Greeting {
    /// The link by which the first account is made, while there is none.
    set_up: Option<String>,
    key: FirstKey,
    /// Whether somebody waits for what is told.
    watched: bool,
}

enum FirstKey {
    /// There are keys.
    Known,
    /// There are none, and whoever reads this may be anybody.
    Missing,
    Shown(ApiKey),
}

impl Greeting {
    /// Makes what is told only now. The first key is for a person who watches, or who asks for it; not for a log.
    pub(crate) async fn prepare(
        settings: &Settings,
        doors: &Doors,
        store: &Store,
        asked_for_key: bool,
    ) -> Result<Self, CliError> {
        let set_up = match doors.console {
            ConsoleDoor::None => None,
            ConsoleDoor::Shared | ConsoleDoor::Own(_) => store.set_up().await?,
        };
        let set_up = set_up.map(|token| format!("{}/welcome/{}", doors.console_origin(settings), token.reveal()));
        let watched = asked_for_key || std::io::stdout().is_terminal();
        let key = match store.count_keys().await? {
            0 if watched => {
                let new = NewKey { name: "first".into(), completions: true, expires_at: None };
                FirstKey::Shown(store.create_key(&Viewer::operator(), new).await?)
            }
            0 => FirstKey::Missing,
            _ => FirstKey::Known,
        };
        Ok(Self { set_up, key, watched })
    }

    /// Says where everything is and what to do next.
    pub(crate) fn tell(&self, settings: &Settings, doors: &Doors, backing: &Backing, grounder: Option<&Grounder>) {
        let (api, origin) = (doors.api_base_url(settings), doors.console_origin(settings));
        let mut lines = vec![
            format!("Adriaticum {}", env!("CARGO_PKG_VERSION")),
            format!("  API       {api}  (listening on {})", doors.api.address),
        ];
        lines.extend(settings.unreachable_api().map(|warning| format!("  Warning   {warning}")));
        match &doors.console {
            ConsoleDoor::None => {}
            ConsoleDoor::Shared => lines.push(format!("  Console   {origin}  (the same address)")),
            ConsoleDoor::Own(door) => lines.push(format!("  Console   {origin}  (listening on {})", door.address)),
        }
        if let Some(link) = &self.set_up {
            lines.push(format!("  Set up    {link}  (makes the first account; works once, for a day)"));
        }
        if let FirstKey::Shown(key) = &self.key {
            lines.push(format!("  API key   {}  (your first; shown this once)", key.reveal()));
        }
        lines.extend(runtimes(settings, backing));
        if let Some(grounder) = grounder.filter(|grounder| grounder.is_configured()) {
            lines.push(format!("  Search    {}  (grounding: {})", grounder.search_location(), facts::mode(settings)));
        }
        if let Some(door) = &doors.ops {
            lines.push(format!("  Ops       http://{}  (health and metrics)", door.address));
        }
        lines.push(format!("  Database  {}", settings.database));
        if let FirstKey::Missing = self.key {
            lines
                .push(format!("\nCreate the first API key, in another terminal, with: {} keys create NAME", program()));
        }
        say(&lines.join("\n"));
    }

    /// Once a request could be answered, says so, and how to make one with the first key.
    pub(crate) async fn invite(self, base_url: String, pool: Option<Arc<Pool>>) {
        let Some(pool) = pool.filter(|_| self.watched) else { return };
        wait_until_ready(&pool).await;
        let FirstKey::Shown(key) = self.key else {
            say(&format!("\nReady. Another API key: {} keys create NAME\n", program()));
            return;
        };
        let key = key.reveal();
        say(&format!(
            "\nReady. In another terminal, ask something:\n\n\
             curl {base_url}/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
             -d '{{\"model\": \"adriaticum\", \"messages\": [{{\"role\": \"user\", \"content\": \"Where does the Danube end?\"}}]}}'\n"
        ));
    }
}

/// How this program was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "adriaticum".into())
}

/// Waits until somebody has decoded a token for us.
async fn wait_until_ready(pool: &Pool) {
    while pool.availability() != Availability::Available || pool.probe().await.is_err() {
        tokio::time::sleep(LOOK).await;
    }
}

/// What answers requests, a line each.
fn runtimes(settings: &Settings, Backing { pool, faults }: &Backing) -> Vec<String> {
    let Some(pool) = pool else {
        let why = "completions get 503, because `model` is none and `runtime.urls` is empty";
        return vec![format!("  Runtime   none: {why}")];
    };
    if settings.runtime_urls.is_empty() {
        return vec![format!("  Model     {}", model(settings))];
    }
    let state = |member: &MemberStatus| match (faults.iter().find(|(name, _)| *name == member.url), &member.model) {
        (Some((_, fault)), _) => format!("does not answer: {fault}"),
        (None, Some(model)) => format!("model {model}"),
        (None, None) => "model not told".into(),
    };
    let members = pool.status();
    members.iter().map(|member| format!("  Runtime   {}  ({})", member.url, state(member))).collect()
}

/// The embedded runtime's model, or how to get one.
fn model(settings: &Settings) -> String {
    let Some(file) = &settings.model else { return "none".into() };
    let name = file.display();
    match file.is_file() {
        true => name.to_string(),
        false => format!("{name} is not there: completions get 503 until it is. {}", settings.model_remedy()),
    }
}

/// A service that nobody watches serves all the same.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
