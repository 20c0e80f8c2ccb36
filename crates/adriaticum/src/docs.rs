//! Documentation generated from the program: the pages of all settings and commands, man pages, shell completions.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::error::CliError;
use crate::settings::{SETTINGS, Setting, environment_name};

const CONFIGURATION_INTRODUCTION: &str = include_str!("docs/configuration.md");

/// docs/configuration.md.
pub(crate) fn configuration_page() -> String {
    let mut page = CONFIGURATION_INTRODUCTION.to_owned();
    let reloadable = SETTINGS.iter().filter(|setting| setting.is_reloadable);
    let reloadable = reloadable.map(|setting| format!("`{}`", setting.name)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(page, "On SIGHUP, a running service reloads {reloadable}; everything else needs a restart.");
    for settings in SETTINGS.chunk_by(|one, next| section(one) == section(next)) {
        let heading = section(&settings[0]).map_or_else(|| "General".to_owned(), |section| format!("`{section}`"));
        let _ = writeln!(page, "\n## {heading}\n\n| setting | variable | default | |\n|---|---|---|---|");
        for Setting { name, default, description, .. } in settings {
            let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
            let _ = writeln!(page, "| `{name}` | `{}` | {default} | {description} |", environment_name(name));
        }
    }
    page
}

/// None for a setting without a dot in its name.
fn section(setting: &Setting) -> Option<&'static str> {
    setting.name.split_once('.').map(|(section, _)| section)
}

const COMMANDS_INTRODUCTION: &str = include_str!("docs/commands.md");

/// docs/commands.md.
pub(crate) fn commands_page() -> String {
    let mut page = COMMANDS_INTRODUCTION.to_owned();
    let mut program = Cli::command();
    program.build();
    program.get_subcommands().for_each(|command| describe_command(&mut page, command, 2));
    page
}

/// A command with its arguments, and the commands below it.
fn describe_command(page: &mut String, command: &Command, level: usize) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(page, "\n{} `{name}`\n\n{about}.", "#".repeat(level));
    let is_shown =
        |argument: &&Arg| !argument.is_hide_set() && !argument.is_global_set() && argument.get_id() != "help";
    let arguments: Vec<_> = command.get_arguments().filter(is_shown).collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | |\n|---|---|\n");
    }
    for argument in arguments {
        let values = argument.get_value_names().unwrap_or_default().join(" ");
        let syntax = match argument.get_long() {
            Some(flag) if matches!(argument.get_action(), ArgAction::SetTrue) => format!("--{flag}"),
            Some(flag) => format!("--{flag} {values}"),
            None => values.replace(' ', "` `"),
        };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match defaults.join(" ").as_str() {
            "" | "false" => String::new(),
            default => format!("; default `{default}`"),
        };
        let _ = writeln!(page, "| `{}` | {help}{default} |", syntax.replace('|', "\\|"));
    }
    command.get_subcommands().for_each(|below| describe_command(page, below, level + 1));
}

/// Prints the man page of the program, or writes one for each command into a folder.
pub(crate) fn man_pages(folder: Option<&Path>) -> Result<ExitCode, CliError> {
    match folder {
        None => clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?,
        Some(folder) => {
            let written =
                std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
            written.map_err(|error| {
                CliError::new(format!("the manual cannot be written to {}: {error}", folder.display()))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn completions(shell: Shell) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adriaticum", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
