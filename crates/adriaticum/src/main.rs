//! The binary: command line, configuration, composition. Only this crate names concrete choices.

mod accounts;
mod alerts;
mod archive;
mod backup;
mod banner;
mod check;
mod cli;
mod docs;
mod embedded;
mod embedder;
mod error;
mod grounding;
mod grouped_usage;
mod health;
mod host_router;
mod identity_provider;
mod index;
mod keys;
mod limits;
mod listeners;
mod log;
mod migrate;
mod model;
mod output;
mod prices;
mod progress;
mod reload;
mod running;
mod serve;
mod settings;
mod shutdown;
mod storage;
mod table;
mod traces;
mod usage;
mod webhook;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, IndexCommand};
use crate::error::CliError;
use crate::settings::Settings;

/// Returns memory to the system soon after an attack is over, which glibc's does not. Without huge pages, which would keep
/// 14 MiB more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // For libraries that use the process's default provider. It fails only if one is installed, and none can be yet.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    let is_service = cli.is_service();
    match run(cli) {
        Ok(code) => code,
        Err(error) if is_service => {
            log::report(&error);
            ExitCode::FAILURE
        }
        Err(error) => error.report(),
    }
}

fn run(cli: Cli) -> Result<ExitCode, CliError> {
    match &cli.command {
        Command::Completions { shell } => return docs::completions(*shell),
        Command::Man { markdown: true, .. } => {
            write!(std::io::stdout(), "{}", docs::commands_page())?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Man { dir, .. } => return docs::man_pages(dir.as_deref()),
        Command::Index { command: IndexCommand::Extract } => {
            embedded::restart_with_environment(); // for the limit of its memory
            return index::extract().map(|()| ExitCode::SUCCESS);
        }
        _ => {} // everything else needs the configuration
    }
    let (file, flags, is_service) = (cli.config.clone(), cli.overrides(), cli.is_service());
    let load = || Settings::load(file.as_deref(), &flags);
    let settings = load()?;
    for warning in &settings.warnings {
        match is_service {
            true => log::warn_early(warning),
            false => output::print_note(warning),
        }
    }
    match cli.command {
        Command::Backup { all: false, file } => backup::run(&settings, &file)?,
        Command::Backup { all: true, file } => block_on(archive::back_up(&settings, &file))?,
        Command::Restore { file } => archive::restore(&settings, &file)?,
        Command::Config { markdown: true } => write!(std::io::stdout(), "{}", docs::configuration_page())?,
        Command::Config { markdown: false } => write!(std::io::stdout(), "{settings}")?,
        Command::Completions { .. } | Command::Man { .. } => {}
        Command::Serve { first_key } => return serve::serve(&settings, &load, first_key),
        Command::Check { deep } => return block_on(check::check(&settings, deep)),
        Command::Health { ops } => return block_on(health::health(&settings, ops)),
        Command::Engine(options) => return embedded::run(&settings, options),
        Command::Accounts { command } => block_on(accounts::run(&settings, command))?,
        Command::Grounding { command } => block_on(grounding::run(&settings, command))?,
        Command::Index { command } => block_on(index::run(&settings, command))?,
        Command::Keys { command } => block_on(keys::run(&settings, command))?,
        Command::Limits { command } => block_on(limits::run(&settings, command))?,
        Command::Migrate(options) => block_on(migrate::run(&settings, options))?,
        Command::Model { command } => block_on(model::run(&settings, command))?,
        Command::Prices { command } => block_on(prices::run(&settings, command))?,
        Command::Usage(options) => block_on(usage::run(&settings, &options))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn block_on<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CliError::new(format!("the command could not start: {error}")))?.block_on(command)
}
