//! The values of all settings as text, each with its origin.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use url::Url;

use super::declaration::{SETTINGS, Setting};
use crate::error::CliError;

const ENVIRONMENT_PREFIX: &str = "ADRIATICUM_";
const LIST_HINT: &str = "; `adriaticum config` lists all";

struct Value {
    text: String,
    origin: Origin,
}

pub(super) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag => f.write_str("a flag"),
        }
    }
}

/// Holds a value for every setting.
pub(super) struct Values(BTreeMap<&'static str, Value>);

impl Values {
    pub(super) fn defaults() -> Self {
        let value = |setting: &Setting| Value { text: setting.default.into(), origin: Origin::Default };
        Self(SETTINGS.iter().map(|setting| (setting.name, value(setting))).collect())
    }

    pub(super) fn set(&mut self, name: &str, text: String, origin: Origin) -> Result<(), CliError> {
        match self.0.get_mut(name) {
            Some(value) => *value = Value { text, origin },
            None => return Err(unknown_setting(name, &origin)),
        }
        Ok(())
    }

    /// Takes values from variables such as `ADRIATICUM_API_LISTEN`. Returns warnings about unknown ones.
    pub(super) fn set_from_environment(&mut self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (variable, text) in std::env::vars_os() {
            let (Ok(variable), Ok(text)) = (variable.into_string(), text.into_string()) else { continue };
            let Some(name) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
            match SETTINGS.iter().find(|setting| environment_name(setting.name) == variable) {
                Some(setting) => {
                    self.0.insert(setting.name, Value { text, origin: Origin::Environment(variable) });
                }
                None => {
                    let names = SETTINGS.iter().map(|setting| setting.name.replace('.', "_"));
                    let nearest = nearest(&name.to_ascii_lowercase(), names);
                    let hint = nearest.map_or_else(|| LIST_HINT.into(), |name| suggestion(&environment_name(&name)));
                    warnings.push(format!("{variable} is not a setting{hint}"));
                }
            }
        }
        warnings
    }

    /// A base URL that is not set gets the port of the listener's address.
    pub(super) fn follow_port(&mut self, base_url: &str, listen: &str) {
        let Ok(address) = self.text(listen).parse::<SocketAddr>() else { return }; // wrong, or none
        if let Some(Value { text, origin: Origin::Default }) = self.0.get_mut(base_url) {
            let mut url = Url::parse(text).expect("the default is a URL");
            url.set_port(Some(address.port())).expect("the default has a host");
            *text = url.as_str().trim_end_matches('/').to_owned();
        }
    }

    pub(super) fn text(&self, name: &str) -> &str {
        &self.0[name].text
    }

    pub(super) fn origin(&self, name: &str) -> &Origin {
        &self.0[name].origin
    }

    pub(super) fn parse<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, CliError> {
        parse(self.text(name)).map_err(|reason| self.error(name, &reason))
    }

    /// The error for a wrong value of a setting.
    pub(super) fn error(&self, name: &str, reason: &str) -> CliError {
        let setting = SETTINGS.iter().find(|setting| setting.name == name).expect("only known settings are parsed");
        let (origin, text) = (self.origin(name), setting.mask(self.text(name)));
        CliError::new(format!("the setting `{name}` (from {origin}) is {text:?}: {reason}"))
    }
}

/// The variable that sets a setting.
pub(crate) fn environment_name(setting: &str) -> String {
    format!("{ENVIRONMENT_PREFIX}{}", setting.replace('.', "_").to_ascii_uppercase())
}

fn unknown_setting(name: &str, origin: &Origin) -> CliError {
    let section = format!("{name}.");
    let hint = match SETTINGS.iter().find(|setting| setting.name.starts_with(&section)) {
        Some(setting) => format!("; it is a section, with settings such as `{}`", setting.name),
        None => {
            let nearest = nearest(name, SETTINGS.iter().map(|setting| setting.name.to_owned()));
            nearest.map_or_else(|| LIST_HINT.into(), |name| suggestion(&name))
        }
    };
    CliError::new(format!("`{name}` (from {origin}) is not a setting{hint}"))
}

fn suggestion(name: &str) -> String {
    format!("; did you mean `{name}`?")
}

/// The most similar name, if it is similar enough.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let (distance, nearest) = known.map(|known| (strsim::damerau_levenshtein(name, &known), known)).min()?;
    (distance * 2 <= name.len()).then_some(nearest)
}
