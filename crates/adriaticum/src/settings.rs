//! Configuration: one table of settings, read from a file, the environment and flags, each overriding the one before.
//!
//! A value is kept as text with its origin until it is asked for as what it is; everything is read once at the start,
//! so that a wrong value is told before anything runs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use grounding::Mode;
use grounding::search::{SearchUrl, UnusableUrl};
use runtimes::{RuntimeKey, RuntimeUrl, UnusableKey};
use server::{ApiAddress, CertificateFiles, HostName, NoNetwork, TrustedProxies};
use store::{Database, PostgresSettings};
use url::Url;

use crate::complaint::Complaint;
use crate::secret::shown;

const FILE: &str = "adriaticum.toml";
const ENVIRONMENT: &str = "ADRIATICUM_";
/// The model in the data folder.
pub(crate) const MODEL_FILE: &str = "model.gguf";

/// One setting: its name, its default, what it means.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    pub(crate) meaning: &'static str,
}

/// Every setting there is. An empty default means: none.
#[rustfmt::skip]
pub(crate) const KNOWN: &[Known] = &[
    Known { name: "data_dir", default: "data", meaning: "the folder for everything that is kept" },
    Known { name: "database_url", default: "", meaning: "sqlite:PATH, or postgres://USER:PASSWORD@HOST/NAME for several replicas; adriaticum.db in data_dir unless set" },
    Known { name: "database.connections", default: "8", meaning: "connections to PostgreSQL at the most, beside the two that requests share" },
    Known { name: "database.timeout", default: "5s", meaning: "for PostgreSQL to answer" },
    Known { name: "api.base_url", default: "http://localhost:8080/v1", meaning: "where callers reach the API; its host is the API's host" },
    Known { name: "api.listen", default: "127.0.0.1:8080", meaning: "where the API listens" },
    Known { name: "api.threads", default: "auto", meaning: "threads that serve the API; auto is one per core" },
    Known { name: "api.max_connections", default: "4096", meaning: "open connections at the most" },
    Known { name: "api.max_requests", default: "1024", meaning: "completions under way at the most" },
    Known { name: "api.head_timeout", default: "10s", meaning: "for a request's head to arrive" },
    Known { name: "api.body_timeout", default: "15s", meaning: "for the next piece of a body to arrive" },
    Known { name: "api.idle_timeout", default: "75s", meaning: "for a connection between two requests" },
    Known { name: "api.stop_timeout", default: "30s", meaning: "for requests under way to finish after SIGTERM" },
    Known { name: "api.drain", default: "0s", meaning: "for proxies to notice a SIGTERM: so long requests are still answered, before the stop begins" },
    Known { name: "api.log_requests", default: "on", meaning: "whether the log tells of every request, without its text: on or off" },
    Known { name: "tls.certificate", default: "", meaning: "PEM files of certificates with their chains, comma-separated, for the API and the console: chosen by name, read again when they change; in the clear unless set" },
    Known { name: "tls.key", default: "", meaning: "PEM files of their private keys, in the same order" },
    Known { name: "trusted_proxies", default: "", meaning: "addresses and networks of proxies in front, comma-separated: visitors are whom their X-Forwarded-For names" },
    Known { name: "runtime.urls", default: "", meaning: "base URLs of OpenAI-shaped runtimes, comma-separated; a name with several addresses is several runtimes" },
    Known { name: "runtime.key", default: "", meaning: "the API key for those runtimes that have none of their own; one of its own stands in a URL, as in https://:KEY@HOST/v1" },
    Known { name: "runtime.timeout", default: "120s", meaning: "for a completion, a retry included" },
    Known { name: "model", default: "", meaning: "a GGUF file for the embedded runtime, or none; model.gguf in data_dir unless set" },
    Known { name: "engine.cells", default: "auto", meaning: "tokens that the embedded runtime holds in mind, all requests together" },
    Known { name: "engine.requests", default: "24", meaning: "completions that it works on at the same time" },
    Known { name: "engine.queue", default: "256", meaning: "completions that may wait for it" },
    Known { name: "engine.wait", default: "30s", meaning: "how long they may wait" },
    Known { name: "ledger.retention", default: "90d", meaning: "how long single requests are kept; their sums are kept for good" },
    Known { name: "console.base_url", default: "http://localhost:8081", meaning: "where people reach the console" },
    Known { name: "console.listen", default: "127.0.0.1:8081", meaning: "where the console listens; the API's address, too, if their hosts differ; or none" },
    Known { name: "ops.listen", default: "127.0.0.1:9464", meaning: "where health and metrics are served, or none" },
    Known { name: "search.url", default: "", meaning: "where facts are searched: local, searxng+http://HOST or opensearch+http://HOST/INDEX; local once something is indexed unless set" },
    Known { name: "search.timeout", default: "5s", meaning: "for a search" },
    Known { name: "search.tokens", default: "1000", meaning: "tokens that what was found may take in a prompt" },
    Known { name: "grounding", default: "auto", meaning: "which requests get facts from Search: off, auto (those that need facts) or always" },
    Known { name: "otlp.endpoint", default: "", meaning: "where traces are sent by OTLP over HTTP, such as http://HOST:4318; none unless set, here or in OTEL_EXPORTER_OTLP_ENDPOINT" },
    Known { name: "otlp.sample", default: "1", meaning: "the part of the traces that are sent, from 0 to 1; where a caller sends a trace, it has decided" },
    Known { name: "log", default: "info", meaning: "error, warn, info, debug or trace" },
];

/// Settings that a running service takes over when it is told to read them again; the runtimes' only while there are some.
pub(crate) const RELOADED: &[&str] = &["runtime.urls", "runtime.key", "runtime.timeout"];

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

#[derive(Clone)]
struct Value {
    text: String,
    origin: Origin,
}

#[derive(Clone)]
enum Origin {
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

impl Settings {
    /// Reads file, environment and flags, and every value as what it is.
    pub(crate) fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, Complaint> {
        let mut values: BTreeMap<_, _> = KNOWN
            .iter()
            .map(|known| (known.name, Value { text: known.default.into(), origin: Origin::Default }))
            .collect();
        let mut set = |name: &str, text: String, origin: Origin| {
            let known = KNOWN.iter().find(|known| known.name == name).ok_or_else(|| unknown(name, &origin))?;
            values.insert(known.name, Value { text, origin });
            Ok::<_, Complaint>(())
        };
        if let Some((path, text)) = read_file(file)? {
            for (name, value) in parse_file(&path, &text)? {
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
                    let names = KNOWN.iter().map(|known| environment_name(known.name));
                    warnings.push(format!("{variable} is not a setting{}", did_you_mean(&variable, names)));
                }
            }
        }
        for (name, value) in flags {
            set(name, value.clone(), Origin::Flag)?;
        }
        Self::read(values, warnings)
    }

    fn read(values: BTreeMap<&'static str, Value>, warnings: Vec<String>) -> Result<Self, Complaint> {
        let reader = Reader(&values);
        let data_dir = PathBuf::from(reader.text("data_dir"));
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
            key => Some(key.parse().map_err(|error: UnusableKey| reader.wrong("runtime.key", &error))?),
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
            _ => Some(reader.count("engine.cells")?),
        };
        let search = match reader.text("search.url") {
            "" => None,
            url => Some(url.parse().map_err(|error: UnusableUrl| reader.wrong("search.url", &error))?),
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
        let trusted_proxies = trusted_proxies.map_err(|error: NoNetwork| reader.wrong("trusted_proxies", &error))?;
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
    pub(crate) fn for_the_engine(&self) -> impl Iterator<Item = String> {
        let concerns_it = |name: &str| name.starts_with("engine.") || name == "data_dir" || name == "log";
        let settings = self.values.iter().filter(move |(name, _)| concerns_it(name));
        settings.map(|(name, value)| format!("--set={name}={}", value.text))
    }

    /// Where the built-in index is.
    pub(crate) fn index_folder(&self) -> PathBuf {
        self.data_dir.join("index")
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
            writeln!(f, "{} = {:?}  # {}\n", known.name, shown(known.name, &value.text), value.origin)?;
        }
        Ok(())
    }
}

/// Reads values as what they are; says which setting is wrong, where it was set, and why.
struct Reader<'a>(&'a BTreeMap<&'static str, Value>);

impl Reader<'_> {
    fn text(&self, name: &str) -> &str {
        &self.0[name].text
    }

    fn wrong(&self, name: &str, reason: &dyn fmt::Display) -> Complaint {
        let value = &self.0[name];
        Complaint::new(format!(
            "the setting `{name}` (from {}) is {:?}: {reason}",
            value.origin,
            shown(name, &value.text)
        ))
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).split(',').map(str::trim).filter(|entry| !entry.is_empty())
    }

    fn address(&self, name: &str) -> Result<SocketAddr, Complaint> {
        SocketAddr::from_str(self.text(name))
            .map_err(|_| self.wrong(name, &"it must be an IP address and a port, such as 127.0.0.1:8080"))
    }

    fn address_or_none(&self, name: &str) -> Result<Option<SocketAddr>, Complaint> {
        if self.text(name) == "none" { Ok(None) } else { self.address(name).map(Some) }
    }

    fn count(&self, name: &str) -> Result<usize, Complaint> {
        let number = self.text(name).parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| self.wrong(name, &"it must be a whole number above 0"))
    }

    fn threads(&self, name: &str) -> Result<usize, Complaint> {
        match self.text(name) {
            "auto" => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
            _ => self.count(name),
        }
    }

    fn duration(&self, name: &str) -> Result<Duration, Complaint> {
        let duration = humantime::parse_duration(self.text(name)).ok().filter(|duration| !duration.is_zero());
        duration.ok_or_else(|| self.wrong(name, &"it must be a time above 0, such as 30s, 5m or 90d"))
    }

    fn switch(&self, name: &str) -> Result<bool, Complaint> {
        match self.text(name) {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(self.wrong(name, &"it must be on or off")),
        }
    }

    /// A part of a whole.
    fn part(&self, name: &str) -> Result<f64, Complaint> {
        let part = self.text(name).parse().ok().filter(|part| (0.0..=1.0).contains(part));
        part.ok_or_else(|| self.wrong(name, &"it must be a number from 0 to 1"))
    }

    fn endpoint(&self, name: &str) -> Result<Option<Url>, Complaint> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        let url = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        url.map(Some).ok_or_else(|| self.wrong(name, &"it must be a URL such as http://localhost:4318"))
    }

    /// A time that may be none at all.
    fn pause(&self, name: &str) -> Result<Duration, Complaint> {
        let pause = humantime::parse_duration(self.text(name));
        pause.map_err(|_| self.wrong(name, &"it must be a time, such as 0s, 5s or 1m"))
    }
}

/// Certificates and keys, which come in pairs. Where TLS is spoken, base URLs must say so: cookies and forms go by them.
fn certificate_files(reader: &Reader<'_>, with_console: bool) -> Result<Vec<CertificateFiles>, Complaint> {
    let (certificates, keys) = (reader.list("tls.certificate"), reader.list("tls.key"));
    let (certificates, keys): (Vec<_>, Vec<_>) = (certificates.collect(), keys.collect());
    if certificates.len() != keys.len() {
        let reason = format!(
            "there must be as many keys as certificates in `tls.certificate`, which are {}",
            certificates.len()
        );
        return Err(reader.wrong("tls.key", &reason));
    }
    let base_urls = [Some("api.base_url"), with_console.then_some("console.base_url")];
    for name in base_urls.into_iter().flatten().filter(|_| !certificates.is_empty()) {
        if !reader.text(name).to_ascii_lowercase().starts_with("https://") {
            return Err(reader.wrong(name, &"it must begin with https://, because `tls.certificate` is set"));
        }
    }
    let pair =
        |(certificate, key)| CertificateFiles { certificate: PathBuf::from(certificate), key: PathBuf::from(key) };
    Ok(certificates.into_iter().zip(keys).map(pair).collect())
}

fn database(reader: &Reader<'_>, data_dir: &Path) -> Result<Database, Complaint> {
    match reader.text("database_url") {
        "" => Ok(Database::Sqlite(data_dir.join("adriaticum.db"))),
        url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            postgres(reader, url).map(Database::Postgres)
        }
        url => match url.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
            Some(path) if !path.is_empty() => Ok(Database::Sqlite(PathBuf::from(path))),
            _ => Err(reader.wrong("database_url", &"it must be sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME")),
        },
    }
}

fn postgres(reader: &Reader<'_>, url: &str) -> Result<PostgresSettings, Complaint> {
    Ok(PostgresSettings {
        url: url.parse().map_err(|error: store::UnusableDatabase| reader.wrong("database_url", &error))?,
        connections: reader.count("database.connections")?,
        timeout: reader.duration("database.timeout")?,
    })
}

fn read_file(file: Option<&Path>) -> Result<Option<(PathBuf, String)>, Complaint> {
    let path = file.unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.is_none() => Ok(None),
        Err(error) => Err(Complaint::new(format!("the configuration {} cannot be read: {error}", path.display()))),
    }
}

/// The settings in a file: tables become dotted names, arrays comma-separated lists.
fn parse_file(path: &Path, text: &str) -> Result<Vec<(String, String)>, Complaint> {
    let wrong = |reason: String| Complaint::new(format!("the configuration {} is wrong: {reason}", path.display()));
    // In our words: the parser's own would repeat the line, and with it a secret that may stand there.
    let table = text.parse::<toml::Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        wrong(format!("line {line}: {}", error.message()))
    })?;
    let mut settings = Vec::new();
    let mut waiting: Vec<_> = table.into_iter().collect();
    while let Some((name, value)) = waiting.pop() {
        match value {
            toml::Value::Table(table) => {
                waiting.extend(table.into_iter().map(|(below, value)| (format!("{name}.{below}"), value)));
            }
            toml::Value::Array(list) => {
                let texts = list.iter().map(|each| each.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
                let texts = texts.ok_or_else(|| wrong(format!("`{name}` must be a list of strings")))?;
                settings.push((name, texts.join(",")));
            }
            toml::Value::String(text) => settings.push((name, text)),
            other => settings.push((name, other.to_string())),
        }
    }
    Ok(settings)
}

/// The variable that sets a setting.
pub(crate) fn environment_name(setting: &str) -> String {
    format!("{ENVIRONMENT}{}", setting.replace('.', "_").to_ascii_uppercase())
}

fn unknown(name: &str, origin: &Origin) -> Complaint {
    let nearest = did_you_mean(name, KNOWN.iter().map(|known| known.name.to_owned()));
    Complaint::new(format!("`{name}` (from {origin}) is not a setting{nearest}"))
}

fn did_you_mean(name: &str, known: impl Iterator<Item = String>) -> String {
    let nearest = known.map(|known| (strsim::damerau_levenshtein(name, &known), known)).min();
    nearest.map_or_else(String::new, |(_, nearest)| format!("; did you mean `{nearest}`?"))
}
