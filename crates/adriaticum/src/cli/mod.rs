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
pub(crate) use self::keys::{KeyOrId, KeysCommand, OrNone};
pub(crate) use self::limits::{LimitScope, LimitsCommand};
pub(crate) use self::prices::{PriceOf, PricesCommand};
pub(crate) use self::usage::{Month, UsageOptions};

/// The help heading of the global flags.
const SETTINGS_HEADING: &str = "Settings";
const QUICK_START: &str = "\
Quick start: `adriaticum model fetch` downloads a small model; `adriaticum serve` serves it and prints the next steps.
For troubleshooting, run `adriaticum check`.";

/// A self-hosted chat-completions service for one hosted model.
#[derive(Parser)]
#[command(name = "adriaticum", version, max_term_width = 100, after_help = QUICK_START)]
pub(crate) struct Cli {
    /// Configuration file; defaults to `adriaticum.toml` in the working directory.
    #[arg(long, global = true, value_name = "FILE", help_heading = SETTINGS_HEADING)]
    pub(crate) config: Option<PathBuf>,
    /// Data folder; short for `--set data_dir=DIR`.
    #[arg(long, global = true, value_name = "DIR", help_heading = SETTINGS_HEADING)]
    data_dir: Option<String>,
    /// Overrides a setting, such as `--set api.listen=0.0.0.0:8080`; `adriaticum config` lists all settings.
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
        /// Creates an API key if none exists, and prints it once. This is the default on a terminal.
        #[arg(long)]
        first_key: bool,
    },
    /// Creates, lists, renames and revokes API keys.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Limits keys, people or everyone: tokens and requests per day or month, requests per minute, requests in flight.
    Limits {
        #[command(subcommand)]
        command: LimitsCommand,
    },
    /// Manages the console's accounts: invitations, roles, access, password resets, second factors.
    Accounts {
        #[command(subcommand)]
        command: AccountsCommand,
    },
    /// Lists and downloads models for the embedded runtime.
    Model {
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Indexes folders of documents for grounding, and searches them.
    Index {
        #[command(subcommand)]
        command: IndexCommand,
    },
    /// Shows which requests need facts, and why.
    Grounding {
        #[command(subcommand)]
        command: GroundingCommand,
    },
    /// Sets prices per million tokens, from which usage reports compute costs.
    Prices {
        #[command(subcommand)]
        command: PricesCommand,
    },
    /// Reports usage: totals by outcome and by key, by another group, or individual requests.
    Usage(UsageOptions),
    /// Copies the SQLite database to a file, also while the service runs, and checks the copy.
    Backup {
        /// Writes an archive of database, index and settings (without secrets) instead. The model is not included.
        #[arg(long)]
        all: bool,
        /// The file to create; it must not exist yet.
        file: PathBuf,
    },
    /// Restores an archive of `backup --all` to the data folder, and checks it. Overwrites nothing.
    Restore {
        /// The archive.
        file: PathBuf,
    },
    /// Copies the SQLite database to PostgreSQL, and checks that both agree.
    Migrate(MigrateOptions),
    /// Runs only the embedded runtime, as an OpenAI-compatible server for other services.
    #[command(args_conflicts_with_subcommands = true)]
    Engine(EngineOptions),
    /// Checks everything that `serve` needs, and reports each fault with its remedy.
    Check {
        /// Also checks every page of the database.
        #[arg(long)]
        deep: bool,
    },
    /// Queries the readiness of a running service, and prints what is not ready; for container probes.
    Health {
        /// Address of the ops listener; defaults to the setting `ops.listen`.
        #[arg(long, value_name = "ADDRESS")]
        ops: Option<SocketAddr>,
    },
    /// Prints every setting with its value and origin.
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
    /// Prints the man page, or writes one for each command.
    Man {
        /// Writes one page per command into this folder.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Prints all commands with their flags as Markdown instead.
        #[arg(long, conflicts_with = "dir")]
        markdown: bool,
    },
}

#[derive(Args)]
pub(crate) struct MigrateOptions {
    /// PostgreSQL database, such as postgres://USER:PASSWORD@HOST/NAME. It must be empty, or an unused copy.
    #[arg(long, value_name = "URL")]
    pub(crate) to: PostgresUrl,
    /// SQLite file; defaults to the setting `database_url`.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct EngineOptions {
    #[command(subcommand)]
    pub(crate) command: Option<EngineCommand>,
    /// GGUF file of the model; defaults to the setting `model`.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Address to listen on, such as 127.0.0.1:8090 or unix:PATH.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub(crate) listen: engine::Address,
    /// Serves an embedding model at /v1/embeddings, instead of completions.
    #[arg(long)]
    pub(crate) embeddings: bool,
    /// Exits when standard input is closed; set by `serve`.
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}

#[derive(Subcommand)]
pub(crate) enum EngineCommand {
    /// Measures the speed of the settings on this machine again, and stores the fastest.
    Tune {
        /// GGUF file of the model; defaults to the setting `model`.
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
    },
    /// Prints the perplexity of the model on a text (lower is better), to compare models and settings.
    Perplexity {
        /// GGUF file of the model; defaults to the setting `model`.
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
        /// Text file.
        text: PathBuf,
    },
}

#[derive(Subcommand)]
pub(crate) enum ModelCommand {
    /// Lists recommended models with size and licence, and whether each fits into the memory of this machine.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Downloads a model into the data folder: SmolLM2-135M-Instruct unless another is named.
    Fetch {
        /// A name from `model list`.
        #[arg(conflicts_with = "from")]
        name: Option<String>,
        /// A local GGUF file; its URL, optionally with `#sha256=DIGEST`; or OWNER/REPO or OWNER/REPO/FILE.gguf of the
        /// Hugging Face hub.
        #[arg(long, value_name = "PATH|URL|REPO")]
        from: Option<PathBuf>,
        /// Does nothing unless `serve` needs it: no runtime and no other model is set, and the data folder has none.
        #[arg(long)]
        if_needed: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum IndexCommand {
    /// Indexes the Markdown, text, HTML and PDF files of folders, or updates the changed ones.
    Add {
        /// Folders of documents.
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
        /// URL prefix of the documents on the web, such as https://docs.example.org/, for citations.
        #[arg(long, value_name = "PREFIX")]
        url: Option<String>,
    },
    /// Shows the ten best passages for a question, their scores, and which of them would be in the prompt.
    Search {
        /// The question.
        question: String,
        /// Also explains why this document is, or is not, among them.
        #[arg(long, value_name = "FILE")]
        document: Option<PathBuf>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the indexed folders.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Forgets the index that this installation expects, if it is lost or replaced. The one in the index folder, if any, is
    /// used from then on.
    Forget,
    /// Reads documents from standard input under limits; `add` starts it.
    #[command(hide = true)]
    Extract,
    /// Removes folders from the index. The documents are not deleted.
    Remove {
        /// Indexed folders.
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
    },
}

#[derive(Subcommand)]
pub(crate) enum GroundingCommand {
    /// Scores conversations, one JSON object with `messages` per line; prints one JSON object per line.
    Score {
        /// JSON Lines file, or - for standard input.
        file: PathBuf,
    },
    /// Scores labelled conversations, and prints the scorer's accuracy by language and category.
    Judge {
        /// JSON Lines file, or - for standard input.
        file: PathBuf,
    },
    /// Shows whether a request needs facts, whether the indexed documents help with it, and which passages it would get.
    Explain {
        /// The message of the request.
        #[arg(required_unless_present = "conversation", conflicts_with = "conversation")]
        text: Option<String>,
        /// A whole conversation instead: a JSON file with `messages` as in an API request, or - for standard input.
        #[arg(long, value_name = "FILE")]
        conversation: Option<PathBuf>,
    },
}

fn name_and_value(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
