//! What is written about the program, made out of what it runs by: the page of all settings, the manual, completions.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::error::CliError;
use crate::settings::{KNOWN, Known, RELOADED, environment_name};

const INTRODUCTION: &str = "\
# Configuration

<!-- Made by `adriaticum config --markdown`; what is changed here by hand is lost, and a test minds it. -->

Every setting has a default; none has to be set. A value comes from the first of these that has one:

1. a flag: `--set NAME=VALUE`, before or behind the command; `--data-dir DIR` is short for `--set data_dir=DIR`
2. the environment: the variable in the table
3. the file `adriaticum.toml` in the folder where the program is started, or the one that `--config FILE` names

```toml
data_dir = \"/var/lib/adriaticum\"   # what has no dot stands above all tables

[api]
listen = \"0.0.0.0:8080\"
base_url = \"https://api.example.com/v1\"

[runtime]
urls = [\"http://10.0.0.5:8000/v1\", \"http://10.0.0.6:8000/v1\"]   # or one text with commas
```

```sh
adriaticum config                        # every setting in force, and where its value came from; no secrets
adriaticum --set api.drain=5s config     # what a change would do
adriaticum check                         # whether it would work
```

An unknown setting in the file or a flag is an error that names the nearest known one; an unknown variable is a warning.
Times are written `500ms`, `30s`, `5m`, `12h`, `90d`; lists have commas; addresses to listen on are an IP address and a port.
Secrets (the password in a URL, `runtime.key`) belong into the environment or into a file that only the service can read.
";

/// The documentation's page of all settings.
pub(crate) fn configuration_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let reloaded = RELOADED.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(page, "SIGHUP has a running service read again {reloaded}; all else takes a restart.");
    let mut parts: Vec<&str> = KNOWN.iter().map(part).collect();
    parts.sort_by_key(|name| (!name.is_empty(), KNOWN.iter().position(|known| part(known) == *name)));
    parts.dedup();
    for name in parts {
        let heading = if name.is_empty() { "General".to_owned() } else { format!("`{name}`") };
        let _ = writeln!(page, "\n## {heading}\n\n| setting | variable | default | |\n|---|---|---|---|");
        for Known { name, default, meaning } in KNOWN.iter().filter(|known| part(known) == name) {
            let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
            let _ = writeln!(page, "| `{name}` | `{}` | {default} | {meaning} |", environment_name(name));
        }
    }
    page
}

/// What stands before a setting's dot.
fn part(known: &Known) -> &'static str {
    known.name.split_once('.').map_or("", |(part, _)| part)
}

/// The manual: of the program on standard output, or of each command in a folder.
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

/// What makes a shell complete commands and flags.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adriaticum", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
