//! Configuration: one table of settings, read from a file, the environment and flags, each overriding the one before.
//!
//! A value is kept as text with its origin until it is asked for as what it is; everything is read once at the start,
//! so that a wrong value is told before anything runs.

mod file;
mod known;
mod mask;
mod reader;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::ApiAddress;
use grounding::Mode;
use grounding::search::{SearchUrl, SearchUrlError};
use runtimes::{RuntimeKey, RuntimeKeyError, RuntimeUrl};
use store::Database;
use transport::{CertificateFiles, HostName, NetworkError, TrustedProxies};
use url::Url;

pub(crate) use self::known::{KNOWN, Known, RELOADED};
use self::mask::mask;
use self::reader::{Origin, Reader, Value, certificate_files, database};
use crate::error::CliError;

const ENVIRONMENT: &str = "ADRIATICUM_";
/// The model in the data folder.
pub(crate) const MODEL_FILE: &str = "model.gguf";

/// The settings in force.
pub(crate) struct Settings {
    values: BTreeMap<&'static str, Value>,
    warnings: Vec<String>,
    pub(crate) data_dir: PathBuf,
    pub(crate) database: Database,
    pub(crate) database_timeout: Duration,
    pub(crate) api_base_url: String,
    pub(crate) api_address: ApiAddress,
    pub(crate) api_listen: SocketAddr,
    pub(crate) api_threads: usize,
    pub(crate) max_connections: usize,
    pub(crate) max_requests: usize,
    pub(crate) head_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) stop_timeout: Duration,
    pub(crate) drain: Duration,
    pub(crate) log_requests: bool,
    /// What TLS is spoken with; nothing if the API and the console are served in the clear.
    pub(crate) tls: Vec<CertificateFiles>,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) runtime_urls: Vec<RuntimeUrl>,
    /// For runtimes without a key of their own.
    pub(crate) runtime_key: Option<RuntimeKey>,
    pub(crate) runtime_timeout: Duration,
    /// The embedded runtime's model; none if it is not wanted.
    pub(crate) model: Option<PathBuf>,
    pub(crate) engine_cells: Option<usize>,
    pub(crate) engine_requests: usize,
    pub(crate) engine_queue: usize,
    pub(crate) engine_wait: Duration,
    pub(crate) retention: Duration,
    pub(crate) console_base_url: String,
    pub(crate) console_host: HostName,
    /// Where the console listens; none if it is not wanted.
    pub(crate) console_listen: Option<SocketAddr>,
    /// Where health and metrics are served; none if they are not wanted.
    pub(crate) ops_listen: Option<SocketAddr>,
    /// Where facts are searched; the built-in index, if there is one, unless said.
    pub(crate) search: Option<SearchUrl>,
    pub(crate) search_timeout: Duration,
    pub(crate) search_tokens: usize,
    /// Which requests are grounded; none if nothing is to be.
    pub(crate) grounding: Option<Mode>,
    /// Where traces are sent, if that is set here.
    pub(crate) otlp_endpoint: Option<Url>,
    /// The part of the traces that are sent.
    pub(crate) otlp_sample: f64,
    pub(crate) log: String,
}

impl Settings {
    /// Reads file, environment and flags, and every value as what it is.
    pub(crate) fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, CliError> {
        let mut values: BTreeMap<_, _> = KNOWN
            .iter()
            .map(|known| (known.name, Value { text: known.default.into(), origin: Origin::Default }))
            .collect();
        let mut set = |name: &str, text: String, origin: Origin| {
            let known = KNOWN.iter().find(|known| known.name == name).ok_or_else(|| unknown(name, &origin))?;
            values.insert(known.name, Value { text, origin });
            Ok::<_, CliError>(())
        };
        if let Some((path, text)) = file::read(file)? {
            for (name, value) in file::parse(&path, &text)? {
                set(&name, value, Origin::File(path.clone()))?;
            }
        }
        let mut warnings = Vec::new();
        for (variable, value) in std::env::vars_os() {
            let (Ok(variable), Ok(value)) = (variable.into_string(), value.into_string()) else { continue };
            if !variable.starts_with(ENVIRONMENT) {
                continue;
            }
            match KNOWN.iter().find(|known| environment_name(known.name) == variable) {
                Some(known) => set(known.name, value, Origin::Environment(variable))?,
                None => {
                    let name = variable.trim_start_matches(ENVIRONMENT).to_ascii_lowercase();
                    let hint = did_you_mean(&name, KNOWN.iter().map(|known| known.name.replace('.', "_")));
                    let hint = hint.map_or_else(|| LISTED.into(), |name| suggest(&environment_name(&name)));
                    warnings.push(format!("{variable} is not a setting{hint}"));
                }
            }
        }
        for (name, value) in flags {
            set(name, value.clone(), Origin::Flag)?;
        }
        follow_port(&mut values, "api.base_url", "api.listen");
        follow_port(&mut values, "console.base_url", "console.listen");
        Self::read(values, warnings)
    }

    fn read(values: BTreeMap<&'static str, Value>, warnings: Vec<String>) -> Result<Self, CliError> {
        let reader = Reader(&values);
        let data_dir = PathBuf::from(reader.text("data_dir"));
        if data_dir.as_os_str().is_empty() {
            return Err(reader.wrong("data_dir", &"it must name a folder; `.` is the one you are in"));
        }
        let runtime_urls = reader
            .list("runtime.urls")
            .enumerate()
            .map(|(at, url)| {
                // Not repeated: what is wrong with it may be its key.
                let wrong = |reason| {
                    reader.wrong("runtime.urls", &format!("entry {} is no runtime's base URL: {reason}", at + 1))
                };
                url.parse::<RuntimeUrl>().map_err(wrong)
            })
            .collect::<Result<_, _>>()?;
        let runtime_key = match reader.text("runtime.key") {
            "" => None,
            key => Some(key.parse().map_err(|error: RuntimeKeyError| reader.wrong("runtime.key", &error))?),
        };
        let log = reader.text("log").to_owned();
        if !["error", "warn", "info", "debug", "trace"].contains(&log.as_str()) {
            return Err(reader.wrong("log", &"it must be error, warn, info, debug or trace"));
        }
        let model = match reader.text("model") {
            "" => Some(data_dir.join(MODEL_FILE)),
            "none" => None,
            path => Some(PathBuf::from(path)),
        };
        let engine_cells = match reader.text("engine.cells") {
            "auto" => None,
            _ => Some(reader.count_or_auto("engine.cells")?),
        };
        let search = match reader.text("search.url") {
            "" => None,
            url => Some(url.parse().map_err(|error: SearchUrlError| reader.wrong("search.url", &error))?),
        };
        let grounding = match reader.text("grounding") {
            "off" => None,
            "auto" => Some(Mode::Auto),
            "always" => Some(Mode::Always),
            _ => return Err(reader.wrong("grounding", &"it must be off, auto or always")),
        };
        let api_address = ApiAddress::from_base_url(reader.text("api.base_url"))
            .map_err(|error| reader.wrong("api.base_url", &error))?;
        let api_listen = reader.address("api.listen")?;
        let (console_host, console_base_url) = HostName::of_site(reader.text("console.base_url"))
            .map_err(|error| reader.wrong("console.base_url", &error))?;
        let console_listen = reader.address_or_none("console.listen")?;
        if console_listen == Some(api_listen) && api_listen.port() != 0 && *api_address.host() == console_host {
            let reason = "it is the API's address, but both base URLs name the same host; give them different hosts or addresses";
            return Err(reader.wrong("console.listen", &reason));
        }
        let ops_listen = reader.address_or_none("ops.listen")?;
        if ops_listen.is_some_and(|ops| ops.port() != 0 && (ops == api_listen || Some(ops) == console_listen)) {
            let reason =
                "the API or the console listens there; health and metrics need an address of their own, or none";
            return Err(reader.wrong("ops.listen", &reason));
        }
        let trusted_proxies = reader.text("trusted_proxies").parse();
        let trusted_proxies = trusted_proxies.map_err(|error: NetworkError| reader.wrong("trusted_proxies", &error))?;
        Ok(Self {
            database: database(&reader, &data_dir)?,
            database_timeout: reader.duration("database.timeout")?,
            data_dir,
            api_base_url: reader.text("api.base_url").trim_end_matches('/').to_owned(),
            api_address,
            api_listen,
            console_base_url,
            console_host,
            console_listen,
            ops_listen,
            tls: certificate_files(&reader, console_listen.is_some())?,
            trusted_proxies,
            api_threads: reader.threads("api.threads")?,
            max_connections: reader.count("api.max_connections")?,
            max_requests: reader.count("api.max_requests")?,
            head_timeout: reader.duration("api.head_timeout")?,
            body_timeout: reader.duration("api.body_timeout")?,
            idle_timeout: reader.duration("api.idle_timeout")?,
            stop_timeout: reader.duration("api.stop_timeout")?,
            drain: reader.pause("api.drain")?,
            log_requests: reader.switch("api.log_requests")?,
            runtime_urls,
            runtime_key,
            runtime_timeout: reader.duration("runtime.timeout")?,
            model,
            engine_cells,
            engine_requests: reader.count("engine.requests")?,
            engine_queue: reader.count("engine.queue")?,
            engine_wait: reader.duration("engine.wait")?,
            retention: reader.duration("ledger.retention")?,
            search,
            search_timeout: reader.duration("search.timeout")?,
            search_tokens: reader.count("search.tokens")?,
            grounding,
            otlp_endpoint: reader.endpoint("otlp.endpoint")?,
            otlp_sample: reader.part("otlp.sample")?,
            log,
            warnings,
            values,
        })
    }

    /// What the embedded runtime's process must know, as flags for it. No secrets: everyone can see those.
    pub(crate) fn engine_flags(&self) -> impl Iterator<Item = String> {
        let concerns_it = |name: &str| name.starts_with("engine.") || name == "data_dir" || name == "log";
        let settings = self.values.iter().filter(move |(name, _)| concerns_it(name));
        settings.map(|(name, value)| format!("--set={name}={}", value.text))
    }

    /// Where the built-in index is.
    pub(crate) fn index_folder(&self) -> PathBuf {
        self.data_dir.join("index")
    }

    /// How a model gets to where there is none.
    pub(crate) fn model_remedy(&self) -> &'static str {
        match self.values["model"].text.as_str() {
            "" => "Get one with `adriaticum model fetch`.",
            _ => "Put it there, or correct `model` (ADRIATICUM_MODEL).",
        }
    }

    /// Settings that differ from these, and whether a running service can take them over.
    pub(crate) fn changes_to(&self, new: &Self) -> impl Iterator<Item = (&'static str, bool)> {
        let changed = self.values.iter().filter(|(name, value)| new.values[*name].text != value.text);
        changed.map(|(name, _)| (*name, RELOADED.contains(name)))
    }

    /// What is odd about the configuration, but not wrong.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Every setting with its value and origin, as a configuration file would hold them.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for known in KNOWN {
            let value = &self.values[known.name];
            writeln!(f, "# {} ({})", known.meaning, environment_name(known.name))?;
            writeln!(f, "{} = {:?}  # {}\n", known.name, mask(known.name, &value.text), value.origin)?;
        }
        Ok(())
    }
}

impl Settings {
    /// What is wrong with an API that listens for other machines under a name that only this one has.
    pub(crate) fn unreachable_api(&self) -> Option<String> {
        let beyond = !self.api_listen.ip().to_canonical().is_loopback();
        (beyond && self.api_address.host().is_loopback()).then(|| {
            let (listen, base_url) = (self.api_listen, &self.api_base_url);
            let variable = environment_name("api.base_url");
            format!(
                "callers on other machines get 404, because the API listens on {listen} but its base URL is {base_url}: \
                 set `api.base_url` ({variable}) to the URL that they use"
            )
        })
    }
}

/// A base URL that nobody has set names the port that is listened on.
fn follow_port(values: &mut BTreeMap<&'static str, Value>, base_url: &'static str, listen: &'static str) {
    let Ok(address) = values[listen].text.parse::<SocketAddr>() else { return }; // wrong, or none
    if let Some(Value { text, origin: Origin::Default }) = values.get_mut(base_url) {
        let mut url = Url::parse(text).expect("the default is a URL");
        url.set_port(Some(address.port())).expect("the default has a host");
        *text = url.as_str().trim_end_matches('/').to_owned();
    }
}

/// The variable that sets a setting.
pub(crate) fn environment_name(setting: &str) -> String {
    format!("{ENVIRONMENT}{}", setting.replace('.', "_").to_ascii_uppercase())
}

fn unknown(name: &str, origin: &Origin) -> CliError {
    let part = format!("{name}.");
    let hint = match KNOWN.iter().find(|known| known.name.starts_with(&part)) {
        Some(known) => format!("; it is the first half of some, such as `{}`", known.name),
        None => {
            let nearest = did_you_mean(name, KNOWN.iter().map(|known| known.name.to_owned()));
            nearest.map_or_else(|| LISTED.into(), |name| suggest(&name))
        }
    };
    CliError::new(format!("`{name}` (from {origin}) is not a setting{hint}"))
}

const LISTED: &str = "; `adriaticum config` lists all";

fn suggest(name: &str) -> String {
    format!("; did you mean `{name}`?")
}

/// The nearest that is known, if it is near.
fn did_you_mean(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let (distance, nearest) = known.map(|known| (strsim::damerau_levenshtein(name, &known), known)).min()?;
    (distance * 2 <= name.len()).then_some(nearest)
}
