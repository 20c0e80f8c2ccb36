//! The start-up banner: addresses, the first key, and an example request.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use chat::{ApiKey, KeyName};
use grounding::Grounder;
use runtimes::{Availability, MemberStatus, Pool};
use store::{NewKey, Store, Viewer};

use crate::error::CliError;
use crate::listeners::{ConsoleListener, Listeners};
use crate::model::gguf;
use crate::serve::Backend;
use crate::settings::Settings;

/// The interval of readiness probes.
const READY_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A model with fewer follows simple instructions and knows little.
const FEW_PARAMETERS: u64 = 1_000_000_000;

pub(crate) struct Banner {
    /// How to create the first administrator's account, if there is none.
    set_up: Option<String>,
    key: FirstKey,
    /// Whether the reader is a person rather than a log.
    is_interactive: bool,
}

enum FirstKey {
    Exists,
    /// There is none, and none is created, because a log has many readers.
    Missing,
    Created(ApiKey),
}

impl Banner {
    /// Creates the set-up link, at a terminal only, and the first key, at a terminal or on request: both are secrets, and
    /// a log has many readers.
    pub(crate) async fn prepare(
        settings: &Settings,
        listeners: &Listeners,
        store: &Store,
        show_key: bool,
    ) -> Result<Self, CliError> {
        let is_terminal = std::io::stdout().is_terminal();
        let has_sign_up = settings.console.passwords && !matches!(listeners.console, ConsoleListener::Disabled);
        let set_up = match has_sign_up {
            true if is_terminal => store.links().create_setup().await?.map(|token| {
                let (origin, token) = (listeners.console_origin(settings), token.reveal());
                format!("{origin}/welcome/{token}  (creates the first account; works once, for a day)")
            }),
            true if store.links().needs_set_up().await? => {
                Some(format!("{} accounts set-up  (prints the link that creates the first account)", program()))
            }
            _ => None,
        };
        let is_interactive = show_key || is_terminal;
        let key = match store.keys().count().await? {
            0 if is_interactive => {
                let new = NewKey {
                    name: KeyName::parse("first").expect("this is a valid name"),
                    completions: true,
                    expires_at: None,
                    project: None,
                };
                let key = store.keys().create(&Viewer::operator(), new, settings.console.keys_per_person).await;
                FirstKey::Created(key?)
            }
            0 => FirstKey::Missing,
            _ => FirstKey::Exists,
        };
        Ok(Self { set_up, key, is_interactive })
    }

    pub(crate) fn print(
        &self,
        settings: &Settings,
        listeners: &Listeners,
        backend: &Backend,
        grounder: Option<&Grounder>,
    ) {
        let (api, origin) = (listeners.api_base_url(settings), listeners.console_origin(settings));
        let mut lines = vec![
            format!("Adriaticum {}", env!("CARGO_PKG_VERSION")),
            format!("  API       {api}  (listening on {})", listeners.api.address),
        ];
        lines.extend(settings.unreachable_api().map(|warning| format!("  Warning   {warning}")));
        match &listeners.console {
            ConsoleListener::Disabled => {}
            ConsoleListener::Shared => lines.push(format!("  Console   {origin}  (the same address)")),
            ConsoleListener::Separate(listener) => {
                lines.push(format!("  Console   {origin}  (listening on {})", listener.address))
            }
        }
        lines.extend(self.set_up.iter().map(|set_up| format!("  Set up    {set_up}")));
        if let FirstKey::Created(key) = &self.key {
            lines.push(format!("  API key   {}  (your first key; shown only once)", key.reveal()));
        }
        lines.extend(runtimes(settings, backend));
        if let Some(grounder) = grounder.filter(|grounder| grounder.is_configured()) {
            let (location, mode) = (grounder.search_location(), crate::grounding::mode(settings));
            lines.push(format!("  Search    {location}  (grounding: {mode})"));
            if let Err(error) = grounder.check_index() {
                lines.push(format!("  Warning   requests that need facts get 503: {error}"));
            }
        }
        if let Some(listener) = &listeners.ops {
            lines.push(format!("  Ops       http://{}  (health and metrics)", listener.address));
        }
        lines.push(format!("  Database  {}", settings.database_location()));
        if let FirstKey::Missing = self.key {
            lines
                .push(format!("\nCreate the first API key, in another terminal, with: {} keys create NAME", program()));
        }
        print_line(&lines.join("\n"));
    }

    /// Waits until a request can be answered, then prints an example with the first key.
    pub(crate) async fn print_when_ready(self, base_url: String, pool: Option<Arc<Pool>>) {
        let Some(pool) = pool.filter(|_| self.is_interactive) else { return };
        wait_until_ready(&pool).await;
        let devices = pool.status().into_iter().filter_map(|member| member.device);
        devices.for_each(|device| print_line(&format!("  Computes  {device}")));
        let FirstKey::Created(key) = self.key else {
            print_line(&format!("\nReady. Another API key: {} keys create NAME\n", program()));
            return;
        };
        let key = key.reveal();
        print_line(&format!(
            "\nReady. In another terminal, ask something:\n\n\
             curl {base_url}/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
             -d '{{\"model\": \"adriaticum\", \"messages\": [{{\"role\": \"user\", \
             \"content\": \"Explain in one sentence what a database is.\"}}]}}'\n"
        ));
    }
}

/// The path by which this program was started.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "adriaticum".into())
}

async fn wait_until_ready(pool: &Pool) {
    while pool.availability() != Availability::Available || pool.probe().await.is_err() {
        tokio::time::sleep(READY_POLL_INTERVAL).await;
    }
}

/// One line for each runtime.
fn runtimes(settings: &Settings, Backend { pool, faults }: &Backend) -> Vec<String> {
    let Some(pool) = pool else {
        let why = "completions get 503, because `model` is none and `runtime.urls` is empty";
        return vec![format!("  Runtime   none: {why}")];
    };
    if settings.runtime.urls.is_empty() {
        return vec![format!("  Model     {}", model(settings))];
    }
    let describe = |member: &MemberStatus| match (faults.iter().find(|(name, _)| *name == member.url), &member.model) {
        (Some((_, fault)), _) => format!("does not answer: {fault}"),
        (None, Some(model)) => format!("model {model}"),
        (None, None) => "model unknown".into(),
    };
    let members = pool.status();
    members.iter().map(|member| format!("  Runtime   {}  ({})", member.url, describe(member))).collect()
}

/// The embedded runtime's model, or how to get one.
fn model(settings: &Settings) -> String {
    let Some(file) = settings.model_file() else { return "none".into() };
    let name = file.display();
    if file.is_dir() {
        return format!("{name} is a folder: completions get 503. Set `model` to a GGUF file");
    }
    if !file.is_file() {
        return format!("{name} is not there: completions get 503 until it is. {}", settings.model_remedy());
    }
    match gguf::inspect(&file) {
        Ok(summary) if summary.parameters < FEW_PARAMETERS => {
            format!("{name}  ({summary}: to try the service out; larger ones know more: {} model list)", program())
        }
        Ok(summary) => format!("{name}  ({summary})"),
        Err(_) => name.to_string(),
    }
}

/// Errors are ignored: the service runs whether or not standard output is open.
fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
