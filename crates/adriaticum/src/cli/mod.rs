//! The command line. Commands with many flags have a module each.

mod accounts;
mod keys;
mod limits;
mod prices;
mod usage;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use store::PostgresUrl;

pub(crate) use self::accounts::AccountsCommand;
pub(crate) use self::keys::{KeyOrId, KeysCommand, Lifetime, NewOwner, ProjectOrNone};
pub(crate) use self::limits::{LimitScope, LimitsCommand};
pub(crate) use self::prices::{PriceOf, PricesCommand};
pub(crate) use self::usage::{Month, UsageOptions};

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
    /// Whether it runs until it is stopped, and writes a log.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self.command, Command::Serve { .. } | Command::Engine(_))
    }

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
    /// Sets prices per million tokens, by which usage is shown as money.
    Prices {
        #[command(subcommand)]
        command: PricesCommand,
    },
    /// Shows usage: totals by outcome and by key, by another group, or single requests.
    Usage(UsageOptions),
    /// Copies the SQLite database to a file, even while the service runs, and checks the copy.
    Backup {
        /// Writes an archive of database, index and settings instead, without secrets and without the model.
        #[arg(long)]
        all: bool,
        /// The file to create; it must not exist yet.
        file: PathBuf,
    },
    /// Puts an archive of `backup --all` into the data folder, and checks it. Overwrites nothing.
    Restore {
        /// The archive.
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
    /// Serves the embeddings of an embedding model, at /v1/embeddings, instead of completions.
    #[arg(long)]
    pub(crate) embeddings: bool,
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
    /// Shows the ten best passages for a question, and the figures of each.
    Search {
        /// The question.
        question: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists what is indexed.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Gives up the index that this installation had. What is in the index folder now, if anything, is used from then on.
    Forget,
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
