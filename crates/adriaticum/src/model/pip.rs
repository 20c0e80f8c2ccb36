//! Gets the URL of a Python package from pip, so that its index and proxy settings apply.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use reqwest::Url;
use serde_json::Value;

use crate::error::CliError;

/// Commands that may run pip, the most likely first.
pub(super) const PIP_COMMANDS: &[&[&str]] = &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// The URL of a package, from the first pip that is installed. `alternative` ends error messages with another remedy.
pub(super) fn locate(
    package: &str,
    version: &str,
    pip_commands: &[&[&str]],
    alternative: &str,
) -> Result<Url, CliError> {
    let mut too_old = false;
    for pip in pip_commands {
        let Some((program, arguments)) = pip.split_first() else { continue };
        let result = Command::new(program)
            .args(arguments)
            // Installs nothing: pip only reports which wheel it would install.
            .args(["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:"])
            .args(["--no-input", "--disable-pip-version-check", "--quiet", "--report", "-"])
            .arg(format!("{package}=={version}"))
            .stdin(Stdio::null())
            .output();
        let output = match result {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(package, version, &format!("{program}: {error}"), alternative)),
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return parse(&output.stdout).map_err(|reason| failed(package, version, reason, alternative));
        } else if errors.contains("No module named pip") {
            continue;
        } else if errors.contains("no such option") {
            too_old = true;
            continue;
        }
        let lines = || errors.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let line = lines().find(|line| line.starts_with("ERROR:")).or_else(|| lines().next());
        let reason =
            line.map_or_else(|| output.status.to_string(), |line| line.trim_start_matches("ERROR: ").to_owned());
        return Err(failed(package, version, &reason, alternative));
    }
    let problem = match too_old {
        true => "and pip is older than 22.2. Upgrade it (python3 -m pip install --upgrade pip)",
        false => "which is not installed. Install it (on Debian: apt install python3-pip)",
    };
    Err(CliError::new(format!("{package} is downloaded with pip, {problem}{alternative}.")))
}

fn failed(package: &str, version: &str, reason: &str, alternative: &str) -> CliError {
    let reason = reason.trim_end_matches('.');
    CliError::new(format!(
        "pip cannot locate {package} {version}: {reason}. Check the network and pip's index{alternative}."
    ))
}

fn parse(report: &[u8]) -> Result<Url, &'static str> {
    let report: Value = serde_json::from_slice(report).map_err(|_| "its report cannot be read")?;
    let install = report["install"].get(0).ok_or("its report is empty")?;
    let url = install["download_info"]["url"].as_str().and_then(|url| Url::parse(url).ok());
    url.ok_or("its report has no valid URL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_where_the_package_is() {
        let report = r#"{"version": "1", "install": [{"download_info": {"url": "https://a.example/b.whl", "archive_info": {}}}]}"#;
        assert_eq!(parse(report.as_bytes()).unwrap().as_str(), "https://a.example/b.whl");
        let none = ["", "[]", r#"{"install": []}"#, r#"{"install": [{"download_info": {"url": "b.whl"}}]}"#];
        assert!(none.iter().all(|report| parse(report.as_bytes()).is_err()));
    }
}
