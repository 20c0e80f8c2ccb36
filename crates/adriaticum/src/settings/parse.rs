//! Parsers of single values. An error is only the reason: `Values::parse` adds the setting's name and origin.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use api::ApiAddress;
use engine::{GpuChoice, KernelsChoice, Sharing, WeightsChoice};
use grounding::Mode;
use grounding::index::EmbeddingsUrl;
use runtimes::RuntimeUrl;
use store::PostgresUrl;
use transport::BaseUrl;
use url::Url;

type Parsed<T> = Result<T, String>;

pub(crate) enum DatabaseUrl {
    Sqlite(PathBuf),
    Postgres(PostgresUrl),
}

/// The embedded runtime's model.
pub(crate) enum Model {
    /// `MODEL_FILE` in the data folder.
    Default,
    /// No embedded runtime.
    Disabled,
    File(PathBuf),
}

/// The source of the embeddings for semantic search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Embeddings {
    Off,
    /// The sentence encoder in the data folder.
    Encoder,
    Server(EmbeddingsUrl),
    /// A GGUF file, in a separate engine process.
    Model(PathBuf),
}

impl FromStr for Embeddings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::Encoder),
            url if url.contains("://") => url.parse().map(Self::Server).map_err(|error| error.to_string()),
            file if file.to_ascii_lowercase().ends_with(".gguf") => Ok(Self::Model(file.into())),
            _ => Err("it must be on, off, the URL of an embeddings server such as http://HOST:8000/v1, or a GGUF file"
                .into()),
        }
    }
}

pub(super) fn from_str<T: FromStr<Err: fmt::Display>>(text: &str) -> Parsed<T> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

pub(super) fn optional<T: FromStr<Err: fmt::Display>>(text: &str) -> Parsed<Option<T>> {
    if text.is_empty() { Ok(None) } else { from_str(text).map(Some) }
}

pub(super) fn folder(text: &str) -> Parsed<PathBuf> {
    match text {
        "" => Err("it must name a folder; `.` is the current one".into()),
        path => Ok(path.into()),
    }
}

pub(super) fn texts(text: &str) -> Parsed<Vec<String>> {
    Ok(list(text).map(str::to_owned).collect())
}

pub(super) fn paths(text: &str) -> Parsed<Vec<PathBuf>> {
    Ok(list(text).map(PathBuf::from).collect())
}

pub(super) fn address(text: &str) -> Parsed<SocketAddr> {
    text.parse().map_err(|_| "it must be an IP address and a port, such as 127.0.0.1:8080".into())
}

pub(super) fn address_or_none(text: &str) -> Parsed<Option<SocketAddr>> {
    if text == "none" { Ok(None) } else { address(text).map(Some) }
}

pub(super) fn count(text: &str) -> Parsed<usize> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "it must be a whole number above 0".into())
}

pub(super) fn count_or_auto(text: &str) -> Parsed<Option<usize>> {
    if text == "auto" {
        return Ok(None);
    }
    count(text).map(Some).map_err(|_| "it must be auto, or a whole number above 0".into())
}

pub(super) fn bytes(text: &str) -> Parsed<usize> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let unit: usize = match unit.trim_start() {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => 0,
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "it must be a size above 0 in KiB, MiB or GiB, such as 64MiB".into())
}

pub(super) fn threads(text: &str) -> Parsed<usize> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    Ok(count_or_auto(text)?.unwrap_or_else(cores))
}

pub(super) fn duration(text: &str) -> Parsed<Duration> {
    let duration = humantime::parse_duration(text).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| "it must be a time above 0, such as 30s, 5m or 90d".into())
}

pub(super) fn duration_or_zero(text: &str) -> Parsed<Duration> {
    humantime::parse_duration(text).map_err(|_| "it must be a time, such as 0s, 5s or 1m".into())
}

pub(crate) fn on_or_off(text: &str) -> Parsed<bool> {
    one_of(text, [("on", true), ("off", false)])
}

/// One of these words.
fn one_of<T, const N: usize>(text: &str, words: [(&str, T); N]) -> Parsed<T> {
    let names = words.each_ref().map(|(name, _)| *name);
    let found = words.into_iter().find(|(name, _)| *name == text);
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    found.map(|(_, value)| value).ok_or_else(|| format!("it must be {} or {last}", others.join(", ")))
}

pub(super) fn fraction(text: &str) -> Parsed<f64> {
    let fraction = text.parse().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
    fraction.ok_or_else(|| "it must be a number from 0 to 1".into())
}

pub(super) fn endpoint(text: &str) -> Parsed<Option<Url>> {
    if text.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
    url.map(Some).ok_or_else(|| "it must be a URL such as http://localhost:4318".into())
}

pub(super) fn log_level(text: &str) -> Parsed<String> {
    one_of(text, ["error", "warn", "info", "debug", "trace"].map(|level| (level, level.to_owned())))
}

pub(super) fn grounding_mode(text: &str) -> Parsed<Option<Mode>> {
    one_of(text, [("off", None), ("auto", Some(Mode::Auto)), ("always", Some(Mode::Always))])
}

pub(super) fn sharing(text: &str) -> Parsed<Sharing> {
    one_of(text, [("everyone", Sharing::Everyone), ("person", Sharing::Person), ("key", Sharing::Key)])
}

pub(super) fn kernels(text: &str) -> Parsed<KernelsChoice> {
    one_of(text, [("auto", KernelsChoice::Auto), ("library", KernelsChoice::Library)])
}

pub(super) fn gpu(text: &str) -> Parsed<GpuChoice> {
    match (text, text.parse()) {
        ("auto", _) => Ok(GpuChoice::Auto),
        ("off", _) => Ok(GpuChoice::Off),
        (_, Ok(layers)) => Ok(GpuChoice::Layers(layers)),
        (name, _) if name.starts_with(|letter: char| letter.is_ascii_alphabetic()) => {
            Ok(GpuChoice::Device(name.into()))
        }
        _ => Err("it must be auto, off, a device such as CUDA0, or a number of layers".into()),
    }
}

pub(super) fn weights(text: &str) -> Parsed<WeightsChoice> {
    use WeightsChoice::{Auto, Bf16, File, Q8_0};
    one_of(text, [("auto", Auto), ("file", File), ("q8_0", Q8_0), ("bf16", Bf16)])
}

pub(super) fn model(text: &str) -> Parsed<Model> {
    Ok(match text {
        "" => Model::Default,
        "none" => Model::Disabled,
        path => Model::File(path.into()),
    })
}

pub(super) fn database_url(text: &str) -> Parsed<Option<DatabaseUrl>> {
    if text.is_empty() {
        return Ok(None);
    }
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return Ok(Some(DatabaseUrl::Postgres(from_str(text)?)));
    }
    match text.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
        Some(path) if !path.is_empty() => Ok(Some(DatabaseUrl::Sqlite(path.into()))),
        _ => Err("it must be sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME".into()),
    }
}

pub(super) fn runtime_urls(text: &str) -> Parsed<Vec<RuntimeUrl>> {
    // The entry is not quoted, because it may hold a key.
    let parse = |(index, url): (usize, &str)| {
        from_str(url).map_err(|reason| format!("entry {} is not the base URL of a runtime: {reason}", index + 1))
    };
    list(text).enumerate().map(parse).collect()
}

pub(super) fn api_base_url(text: &str) -> Parsed<BaseUrl> {
    let valid = ApiAddress::from_base_url(text).and_then(|_| BaseUrl::parse(text));
    valid.map_err(|error| error.to_string())
}

pub(super) fn console_base_url(text: &str) -> Parsed<BaseUrl> {
    BaseUrl::parse_root(text).map_err(|error| error.to_string())
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}
