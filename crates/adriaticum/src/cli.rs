//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chat::{ApiKey, KeyId, KeyName};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use store::{Email, KeyNote, LimitKind, PersonName, PostgresUrl, Role};

/// The help heading of flags that every command has.
const SETTINGS_HEADING: &str = "Settings";
const QUICK_START: &str = "\
To start: `adriaticum model fetch` downloads a small model, `adriaticum serve` serves it and prints what to do next.
If something does not work, run `adriaticum check`.";

/// A self-hosted chat-completions service for one hosted model.
#[derive(Parser)]
#[command(name = "adriaticum", version, max_term_width = 100, after_help = QUICK_START)]
pub(crate) struct Cli {
    /// The configuration file; `adriaticum.toml` in the working directory unless given.
    #[arg(long, global = true, value_name = "FILE", help_heading = SETTINGS_HEADING)]
    pub(crate) config: Option<PathBuf>,
    /// The data folder; short for `--set data_dir=DIR`.
    #[arg(long, global = true, value_name = "DIR", help_heading = SETTINGS_HEADING)]
    data_dir: Option<String>,
    /// Overrides a setting, such as `--set api.listen=0.0.0.0:8080`; `adriaticum config` lists them.
    #[arg(long, global = true, value_name = "NAME=VALUE", value_parser = name_and_value, help_heading = SETTINGS_HEADING)]
    set: Vec<(String, String)>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Settings given as flags.
    pub(crate) fn overrides(&self) -> Vec<(String, String)> {
        let data_dir = self.data_dir.iter().map(|folder| ("data_dir".to_owned(), folder.clone()));
        data_dir.chain(self.set.iter().cloned()).collect()
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Runs the service until SIGTERM or Ctrl-C.
    Serve {
        /// Creates an API key if there is none, and shows it once. On a terminal, this is the default.
        #[arg(long)]
        first_key: bool,
    },
    /// Creates, lists, renames and revokes API keys.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Limits what a key, a person or everyone may use: tokens and requests by day or month, a rate, requests in flight.
    Limits {
        #[command(subcommand)]
        command: LimitsCommand,
    },
    /// Lists the console's accounts, and creates links for invitations and new passwords.
    Accounts {
        #[command(subcommand)]
        command: AccountsCommand,
    },
    /// Downloads a model for the embedded runtime.
    Model {
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Indexes folders of documents, so that answers can be grounded in them.
    Index {
        #[command(subcommand)]
        command: IndexCommand,
    },
    /// Shows which requests need facts, and why.
    Grounding {
        #[command(subcommand)]
        command: GroundingCommand,
    },
    /// Shows usage: totals by outcome and by key, or single requests.
    Usage(UsageOptions),
    /// Copies the SQLite database to a file, even while the service runs, and checks the copy.
    Backup {
        /// The file to create; it must not exist yet.
        file: PathBuf,
    },
    /// Copies everything from SQLite to PostgreSQL, and checks that both agree.
    Migrate(MigrateOptions),
    /// Runs the embedded runtime on its own, as an OpenAI-compatible server for other services.
    #[command(args_conflicts_with_subcommands = true)]
    Engine(EngineOptions),
    /// Checks what would not work, and says how to fix it.
    Check {
        /// Also checks every page of the database.
        #[arg(long)]
        deep: bool,
    },
    /// Asks a running service whether it is ready, and prints what is not; for container probes.
    Health {
        /// The address of its ops listener; the setting `ops.listen` unless given.
        #[arg(long, value_name = "ADDRESS")]
        ops: Option<SocketAddr>,
    },
    /// Prints every setting in force and where its value came from.
    Config {
        /// Prints the documentation of all settings as Markdown instead.
        #[arg(long)]
        markdown: bool,
    },
    /// Prints the completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page, or writes one for each command.
    Man {
        /// Writes one page per command into this folder.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Args)]
pub(crate) struct MigrateOptions {
    /// The PostgreSQL database, such as postgres://USER:PASSWORD@HOST/NAME. It must be empty, or an unused copy.
    #[arg(long, value_name = "URL", value_parser = postgres_url)]
    pub(crate) to: PostgresUrl,
    /// The SQLite file; the setting `database_url` unless given.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct EngineOptions {
    #[command(subcommand)]
    pub(crate) command: Option<EngineCommand>,
    /// The model's GGUF file; the setting `model` unless given.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Where to listen: an address such as 127.0.0.1:8090, or unix:PATH.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub(crate) listen: engine::Address,
    /// Exits when standard input is closed; set by `serve`.
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}

#[derive(Subcommand)]
pub(crate) enum EngineCommand {
    /// Measures the settings that matter on this machine again, and keeps the fastest.
    Tune {
        /// The model's GGUF file; the setting `model` unless given.
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
    },
    /// Prints how well the model predicts a text (its perplexity; less is better), to compare models and settings.
    Perplexity {
        /// The model's GGUF file; the setting `model` unless given.
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
        /// A text file.
        text: PathBuf,
    },
}

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Creates a key and prints it. It cannot be shown again.
    Create {
        /// The key's name.
        #[arg(value_parser = KeyName::parse)]
        name: KeyName,
        /// Creates the key without permission for completions.
        #[arg(long)]
        without_completions: bool,
        /// The time until the key expires, such as `30d` or `12h`; never unless given.
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires: Option<Duration>,
        /// A limit of the key, such as `tokens-per-month=1000000`, as `limits set` takes them; may be given several times.
        #[arg(long, value_name = "LIMIT=AMOUNT", value_parser = budget)]
        budget: Vec<(LimitKind, u64)>,
    },
    /// Lists all keys. Their secrets are not stored and cannot be shown.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Renames a key.
    Rename {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// The key's name.
        #[arg(value_parser = KeyName::parse)]
        name: KeyName,
    },
    /// Gives a key another secret and prints the new key. The old one works for a while, so that nothing has to stop.
    Rotate {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// How long the old secret still works, such as `24h`; `0s` ends it at once.
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = overlap)]
        overlap: Duration,
    },
    /// Changes a key: expiry, permission, owner or note.
    #[command(arg_required_else_help = true)]
    Set {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// The time from now until it expires, such as `30d`, or `never`.
        #[arg(long, value_name = "TIME", value_parser = lifetime_or_never)]
        expires: Option<Lifetime>,
        /// Whether it may execute completions: on or off.
        #[arg(long, value_name = "ON-OR-OFF", value_parser = on_or_off)]
        completions: Option<bool>,
        /// The e-mail address of the person who gets it, or `nobody`.
        #[arg(long, value_name = "EMAIL", value_parser = owner)]
        owner: Option<NewOwner>,
        /// A note for people.
        #[arg(long, value_name = "TEXT", value_parser = KeyNote::parse)]
        note: Option<KeyNote>,
    },
    /// Revokes a key: the very next request with it is refused.
    Revoke {
        /// The key's public id, or the whole key.
        #[arg(value_parser = key_or_id)]
        id: KeyOrId,
    },
}

/// How long a key lives from now on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lifetime {
    Never,
    After(Duration),
}

fn lifetime_or_never(text: &str) -> Result<Lifetime, String> {
    match text {
        "never" => Ok(Lifetime::Never),
        _ => lifetime(text).map(Lifetime::After),
    }
}

#[derive(Debug, Clone)]
pub(crate) enum NewOwner {
    Nobody,
    Person(Email),
}

fn owner(text: &str) -> Result<NewOwner, String> {
    match text {
        "nobody" => Ok(NewOwner::Nobody),
        _ => text.parse().map(NewOwner::Person).map_err(|error: store::EmailError| error.to_string()),
    }
}

fn on_or_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is on or off"),
    }
}

/// `tokens-per-month=1000000`.
fn budget(text: &str) -> Result<(LimitKind, u64), String> {
    let (kind, amount) = text.split_once('=').ok_or("it is a limit and an amount, as in tokens-per-month=1000000")?;
    let kind = kind.parse().map_err(|error: store::LimitKindError| error.to_string())?;
    let amount = amount.parse().ok().filter(|amount| *amount <= MAX_LIMIT);
    Ok((kind, amount.ok_or_else(|| format!("the amount is a whole number of at most {MAX_LIMIT}"))?))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyOrId {
    pub(crate) id: KeyId,
    /// Whether the whole key was given, which is then in the shell's history.
    pub(crate) is_secret: bool,
}

#[derive(Subcommand)]
pub(crate) enum LimitsCommand {
    /// Lists all limits, and what is used of them.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sets a limit, or changes it. It holds from the next request on, on every replica.
    Set {
        #[command(flatten)]
        of: LimitScope,
        /// tokens-per-day, tokens-per-month, requests-per-day, requests-per-month (days and months are in UTC),
        /// requests-per-minute or requests-in-flight.
        #[arg(value_name = "LIMIT")]
        kind: LimitKind,
        /// How many.
        #[arg(value_parser = clap::value_parser!(u64).range(..=MAX_LIMIT))]
        amount: u64,
    },
    /// Removes a limit.
    Remove {
        #[command(flatten)]
        of: LimitScope,
        /// The limit, as `set` takes it.
        #[arg(value_name = "LIMIT")]
        kind: LimitKind,
    },
}

/// Whose limit it is.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LimitScope {
    /// Of a key, by its public id.
    #[arg(long, value_name = "ID", value_parser = key_id)]
    pub(crate) key: Option<KeyId>,
    /// Of all keys of a person, by e-mail address.
    #[arg(long, value_name = "EMAIL")]
    pub(crate) person: Option<Email>,
    /// Of all keys together.
    #[arg(long)]
    pub(crate) everyone: bool,
}

/// Far more than anybody can use, and far less than overflows when it is counted.
const MAX_LIMIT: u64 = 1_000_000_000_000_000;

#[derive(Subcommand)]
pub(crate) enum AccountsCommand {
    /// Lists all accounts.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints a link that creates one account.
    Invite {
        /// Whom it is for, as a note.
        #[arg(default_value = "somebody", value_parser = invited_name)]
        note: String,
        /// The role of the account: admin or developer.
        #[arg(long, default_value = "developer")]
        role: Role,
        /// How long the link works.
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = lifetime)]
        expires: Duration,
    },
    /// Prints a link that sets a new password once.
    Reset {
        /// The account's e-mail address.
        email: Email,
    },
    /// Changes an account's role.
    Role {
        /// The account's e-mail address.
        email: Email,
        /// admin or developer.
        role: Role,
    },
    /// Disables an account: ends its sessions, withdraws its links and refuses sign-in.
    Disable {
        /// The account's e-mail address.
        email: Email,
        /// Also revokes all of their keys.
        #[arg(long)]
        revoke_keys: bool,
    },
    /// Changes an account's name or e-mail address.
    Set {
        /// The account's e-mail address.
        email: Email,
        /// Another name.
        #[arg(long, value_parser = PersonName::parse)]
        name: Option<PersonName>,
        /// Another e-mail address.
        #[arg(long, value_name = "EMAIL")]
        new_email: Option<Email>,
    },
    /// Deletes an account for good and revokes its keys. What was recorded stays, without a name.
    Delete {
        /// The account's e-mail address.
        email: Email,
    },
    /// Enables a disabled account.
    Enable {
        /// The account's e-mail address.
        email: Email,
    },
    /// Lists the links that are still open: invitations and password resets.
    Links {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Withdraws an open link.
    Withdraw {
        /// The link's id, from `accounts links`.
        id: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum ModelCommand {
    /// Downloads a model into the data folder: SmolLM2-135M-Instruct unless `--from` names another.
    Fetch {
        /// A GGUF file on this machine, or OWNER/REPO or OWNER/REPO/FILE.gguf of the Hugging Face hub.
        #[arg(long, value_name = "PATH-OR-REPO")]
        from: Option<PathBuf>,
        /// Does nothing unless `serve` would need it: no runtime and no other model is set, and there is none yet.
        #[arg(long)]
        if_needed: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum IndexCommand {
    /// Indexes the Markdown, text, HTML and PDF files of folders, or updates what has changed.
    Add {
        /// Folders of documents.
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
        /// The URL of the documents on the web, such as https://docs.example.org/: sources are cited by it.
        #[arg(long, value_name = "PREFIX")]
        url: Option<String>,
    },
    /// Lists what is indexed.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Reads documents from standard input under limits; `add` starts it.
    #[command(hide = true)]
    Extract,
    /// Removes folders from the index; the documents themselves stay.
    Remove {
        /// Folders that were added.
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
    },
}

#[derive(Subcommand)]
pub(crate) enum GroundingCommand {
    /// Scores conversations, one JSON object with `messages` per line; prints one JSON object per line.
    Score {
        /// The file, or - for standard input.
        file: PathBuf,
    },
    /// Scores labelled conversations, and prints how often the scorer is right by language and category.
    Judge {
        /// The file, or - for standard input.
        file: PathBuf,
    },
    /// Shows whether a message needs facts, why, and what would be searched for.
    Explain {
        /// The message.
        text: String,
    },
}

#[derive(Args)]
pub(crate) struct UsageOptions {
    /// How far back, such as `7d`, `24h` or `90d`.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration)]
    pub(crate) since: Duration,
    /// As JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// As CSV.
    #[arg(long)]
    pub(crate) csv: bool,
    /// Single requests, newest first, instead of totals.
    #[arg(long)]
    pub(crate) requests: bool,
    /// Max. number of requests.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "requests")]
    pub(crate) limit: u32,
}

fn name_and_value(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn postgres_url(text: &str) -> Result<PostgresUrl, String> {
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        return Err("it must begin with postgres://".into());
    }
    text.parse().map_err(|error: store::PostgresUrlError| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "it must be a duration, such as 30d, 12h or 90m".into())
}

/// The lifetime of a key or a link. Dates must stay within what a calendar shows.
fn lifetime(text: &str) -> Result<Duration, String> {
    const MAX_LIFETIME: Duration = Duration::from_secs(100 * 365 * 86_400);
    let lifetime = duration(text)?;
    if lifetime.is_zero() || lifetime > MAX_LIFETIME {
        return Err("it must be above 0 and at most 100 years".into());
    }
    Ok(lifetime)
}

fn overlap(text: &str) -> Result<Duration, String> {
    const MAX_OVERLAP: Duration = Duration::from_secs(366 * 86_400);
    duration(text).and_then(|overlap| match overlap <= MAX_OVERLAP {
        true => Ok(overlap),
        false => Err("it is at most a year".into()),
    })
}

fn key_id(text: &str) -> Result<KeyId, &'static str> {
    text.parse()
        .map_err(|_| "a key's public id is the 12 letters and digits after `adria_`; see `adriaticum keys list`")
}

fn invited_name(text: &str) -> Result<String, &'static str> {
    KeyName::parse(text).map(String::from).map_err(|_| "a name has 1 to 100 printable characters")
}

fn key_or_id(text: &str) -> Result<KeyOrId, &'static str> {
    match ApiKey::parse(text) {
        Ok(key) => Ok(KeyOrId { id: key.id(), is_secret: true }),
        Err(_) => key_id(text).map(|id| KeyOrId { id, is_secret: false }),
    }
}
