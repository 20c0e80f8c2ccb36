//! The configuration, read from a file, the environment and flags, each overriding the one before.
//!
//! `declaration` holds every setting once. Values are text with an origin until `Settings::load` parses them, all at
//! the start, so that a wrong value is reported before anything runs.

mod declaration;
mod file;
#[cfg(test)]
mod fuzz;
mod mask;
mod parse;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};

use store::{Database, PostgresSettings};
use transport::CertificateFiles;

pub(crate) use self::declaration::{SETTINGS, Setting, Settings};
use self::parse::{DatabaseUrl, Model};
pub(crate) use self::parse::{Embeddings, on_or_off};
pub(crate) use self::values::environment_name;
use self::values::{Origin, Values};
use crate::error::CliError;

const DATABASE_FILE: &str = "adriaticum.db";
const INDEX_FOLDER: &str = "index";
const ENCODER_FILE: &str = "sentence-encoder.whl";
pub(crate) const MODEL_FILE: &str = "model.gguf";

impl Settings {
    pub(crate) fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, CliError> {
        let (mut values, mut faults) = (Values::defaults(), Vec::new());
        if let Some((path, text)) = file::read(file)? {
            for (name, text) in file::parse(&path, &text)? {
                faults.extend(values.set(&name, text, Origin::File(path.clone())).err());
            }
        }
        let warnings = values.set_from_environment();
        for (name, text) in flags {
            faults.extend(values.set(name, text.clone(), Origin::Flag).err());
        }
        values.follow_port("api.base_url", "api.listen");
        values.follow_port("console.base_url", "console.listen");
        faults.extend(Self::faults(&values));
        CliError::from_all(faults)?;
        let settings = Self::parse(values, warnings)?;
        let checks = [settings.check_addresses(), settings.check_tls(), settings.check_sign_in()];
        CliError::from_all(checks.into_iter().filter_map(Result::err))?;
        Ok(settings)
    }

    fn check_addresses(&self) -> Result<(), CliError> {
        let (api, console) = (&self.api, &self.console);
        let is_shared = console.listen == Some(api.listen) && api.listen.port() != 0;
        if is_shared && api.base_url.host == console.base_url.host {
            let reason = "it is the API's address, but both base URLs name the same host; \
                          give them different hosts or addresses";
            return Err(self.values.error("console.listen", reason));
        }
        if self.ops.listen.is_some_and(|ops| ops.port() != 0 && (ops == api.listen || Some(ops) == console.listen)) {
            let reason = "the API or the console listens there; health and metrics need another address, or none";
            return Err(self.values.error("ops.listen", reason));
        }
        Ok(())
    }

    /// Certificates and keys are pairs. With TLS, base URLs must be https: cookies and forms depend on the
    /// scheme.
    fn check_tls(&self) -> Result<(), CliError> {
        let certificates = self.tls.certificate.len();
        if certificates != self.tls.key.len() {
            let reason = format!("there must be as many keys as certificates in `tls.certificate`: {certificates}");
            return Err(self.values.error("tls.key", &reason));
        }
        let base_urls = [Some("api.base_url"), self.console.listen.map(|_| "console.base_url")];
        let is_https = |name: &&str| self.values.text(name).to_ascii_lowercase().starts_with("https://");
        match base_urls.into_iter().flatten().find(|name| certificates > 0 && !is_https(name)) {
            Some(name) => Err(self.values.error(name, "it must begin with https://, because `tls.certificate` is set")),
            None => Ok(()),
        }
    }

    /// At least one way to sign in is required.
    fn check_sign_in(&self) -> Result<(), CliError> {
        match (self.console.passwords, &self.oidc.issuer) {
            (false, None) => {
                Err(self.values.error("console.passwords", "no user could sign in, because `oidc.issuer` is not set"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn database_location(&self) -> Database {
        match &self.database_url {
            None => Database::Sqlite(self.data_dir.join(DATABASE_FILE)),
            Some(DatabaseUrl::Sqlite(path)) => Database::Sqlite(path.clone()),
            Some(DatabaseUrl::Postgres(url)) => Database::Postgres(PostgresSettings {
                url: url.clone(),
                connections: self.database.connections,
                timeout: self.database.timeout,
            }),
        }
    }

    /// Empty without TLS.
    pub(crate) fn certificate_files(&self) -> Vec<CertificateFiles> {
        let pairs = self.tls.certificate.iter().cloned().zip(self.tls.key.iter().cloned());
        pairs.map(|(certificate, key)| CertificateFiles { certificate, key }).collect()
    }

    pub(crate) fn index_folder(&self) -> PathBuf {
        self.data_dir.join(INDEX_FOLDER)
    }

    /// The sentence encoder that makes vectors of documents and questions.
    pub(crate) fn encoder_file(&self) -> PathBuf {
        self.data_dir.join(ENCODER_FILE)
    }

    /// The embedded runtime's model; none if `model` is none.
    pub(crate) fn model_file(&self) -> Option<PathBuf> {
        match &self.model {
            Model::Default => Some(self.data_dir.join(MODEL_FILE)),
            Model::Disabled => None,
            Model::File(path) => Some(path.clone()),
        }
    }

    /// The remedy for a missing model.
    pub(crate) fn model_remedy(&self) -> &'static str {
        match self.model {
            Model::Default => "Get one with `adriaticum model fetch`.",
            Model::Disabled | Model::File(_) => "Put it there, or correct `model` (ADRIATICUM_MODEL).",
        }
    }

    /// The settings of the embedded runtime's process, as flags. No secrets: every user of the
    /// machine can see them.
    pub(crate) fn engine_flags(&self) -> impl Iterator<Item = String> {
        let is_for_engine = |name: &str| name.starts_with("engine.") || name == "data_dir" || name == "log";
        let names = SETTINGS.iter().map(|setting| setting.name).filter(move |name| is_for_engine(name));
        names.map(|name| format!("--set={name}={}", self.values.text(name)))
    }

    /// The settings that have another value in `new`.
    pub(crate) fn changes(&self, new: &Self) -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|setting| self.values.text(setting.name) != new.values.text(setting.name))
    }

    /// A warning if the API listens for other machines, but its base URL names this one.
    pub(crate) fn unreachable_api(&self) -> Option<String> {
        let (listen, base_url) = (self.api.listen, &self.api.base_url);
        (!listen.ip().to_canonical().is_loopback() && base_url.host.is_loopback()).then(|| {
            let variable = environment_name("api.base_url");
            format!(
                "callers on other machines get 404, because the API listens on {listen} \
                 but its base URL is {base_url}: set `api.base_url` ({variable}) to the URL that they use"
            )
        })
    }
}

impl Settings {
    /// All settings that were set, as a configuration file. Secrets and the locations of the data are comments.
    pub(crate) fn without_secrets(&self) -> String {
        let mut text = String::new();
        for setting in SETTINGS.iter().filter(|setting| !matches!(self.values.origin(setting.name), Origin::Default)) {
            let (name, value) = (setting.name, self.values.text(setting.name));
            let masked = setting.mask(value);
            let value_as_toml = toml::Value::String(masked.clone());
            let comment = if masked != value || ["data_dir", "database_url"].contains(&name) { "# " } else { "" };
            text.push_str(&format!("{comment}{name} = {value_as_toml}\n"));
        }
        text
    }
}

/// Every setting with its value and origin, as a configuration file.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for setting in SETTINGS {
            let (name, origin) = (setting.name, self.values.origin(setting.name));
            writeln!(f, "# {} ({})", setting.description, environment_name(name))?;
            writeln!(f, "{name} = {:?}  # {origin}\n", setting.mask(self.values.text(name)))?;
        }
        Ok(())
    }
}
