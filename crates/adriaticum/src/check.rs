//! The `check` command: tries everything that `serve` needs, and reports each fault with its remedy.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chat::{ChatRequest, MaxTokens, Message, RequestId, Role, Temperature};
use format::count;
use grounding::Mode;
use grounding::index::Indexer;
use grounding::search::{RemoteSearch, RemoteUrl, SearchUrl};
use indicatif::DecimalBytes;
use runtimes::{Attribution, Availability, Pool, PoolClient, PoolSettings};
use rustix::fs::Access;
use tokio::net::TcpListener;

use crate::embedder;
use crate::error::CliError;
use crate::identity_provider;
use crate::listeners::listen_error;
use crate::model::inspect;
use crate::running;
use crate::serve::open_certificates;
use crate::settings::Settings;
use crate::storage::{open_store, os_error};

/// With less free space, the ledger may soon stop.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// A certificate that expires sooner should have been renewed by now.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The first start of the embedded model includes tuning, and a large model may be read from a slow disk.
const LOAD_TIMEOUT: Duration = Duration::from_secs(600);

enum Finding {
    Pass(String),
    Note(String),
    Fail(String),
}

use Finding::{Fail, Note, Pass};

pub(crate) async fn check(settings: &Settings, deep: bool) -> Result<ExitCode, CliError> {
    let mut findings = vec![("settings", Pass("all valid".into()))];
    findings.extend(storage(settings, deep).await.into_iter().map(|finding| ("storage", finding)));
    // Without the data folder, every check that needs it would fail for the same reason.
    let access = rustix::fs::access(settings.data_dir.join("."), Access::WRITE_OK | Access::EXEC_OK);
    let has_folder = access.is_ok();
    if let (Err(error), false) = (access, findings.iter().any(|(_, finding)| matches!(finding, Fail(_)))) {
        let (folder, error) = (settings.data_dir.display(), os_error(&error.into()));
        findings
            .push(("storage", Fail(format!("the data folder {folder} cannot be written: {error}. Make it writable."))));
    }
    let ours = running::addresses(&settings.data_dir);
    findings.push(("api", address(settings.api.listen, "api.listen", &ours).await));
    findings.extend(settings.unreachable_api().map(|warning| ("api", Note(warning))));
    if let Some(console) = settings.console.listen.filter(|console| *console != settings.api.listen) {
        findings.push(("console", address(console, "console.listen", &ours).await));
    }
    findings.extend(sign_in(settings).await.map(|finding| ("sign-in", finding)));
    if let Some(ops) = settings.ops.listen {
        findings.push(("ops", address(ops, "ops.listen", &ours).await));
    }
    findings.extend(certificates(settings).into_iter().map(|finding| ("tls", finding)));
    if settings.runtime.urls.is_empty() {
        let finding =
            if has_folder || settings.model_file().is_none() { embedded(settings).await } else { no_folder() };
        findings.push(("model", finding));
    }
    for url in &settings.runtime.urls {
        let (urls, key) = (vec![url.clone()], settings.runtime.key.clone());
        let pool = Pool::new(PoolSettings { urls, key, timeout: Duration::from_secs(30), guard: true });
        findings.push(("runtime", runtime(url, pool).await));
    }
    let is_remote = matches!(settings.search.url, Some(SearchUrl::Remote(_)));
    findings.push(("search", if has_folder || is_remote { search(settings).await } else { no_folder() }));
    let mut out = std::io::stdout().lock();
    let mut bad = 0;
    for (part, finding) in &findings {
        let (mark, text) = match finding {
            Pass(text) => ("ok  ", text),
            Note(text) => ("note", text),
            Fail(text) => {
                bad += 1;
                ("FAIL", text)
            }
        };
        writeln!(out, "{mark}  {part:<8}  {text}")?;
    }
    match bad {
        0 => writeln!(out, "\nAll checks passed.")?,
        1 => writeln!(out, "\n1 check failed.")?,
        bad => writeln!(out, "\n{bad} checks failed.")?,
    }
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the identity provider answers, if there is one.
async fn sign_in(settings: &Settings) -> Option<Finding> {
    let provider = match identity_provider::from_settings(settings, &settings.console.base_url.to_string()) {
        Ok(provider) => provider?,
        Err(error) => return Some(Fail(error.to_string())),
    };
    let issuer = provider.client.issuer();
    Some(match provider.client.check().await {
        Ok(()) => Pass(format!("the identity provider {issuer} answers")),
        Err(error) => Fail(format!(
            "no user can sign in at {issuer}: {error}. Correct `oidc.issuer`, or start \
             the provider."
        )),
    })
}

fn no_folder() -> Finding {
    Note("not checked, because the data folder cannot be used".into())
}

async fn storage(settings: &Settings, deep: bool) -> Vec<Finding> {
    let store = match open_store(settings).await {
        Ok(store) => store,
        Err(error) => return vec![Fail(error.to_string())],
    };
    let database = settings.database_location();
    let mut findings = vec![Pass(format!("the database {database} opens"))];
    if let Ok(disk) = rustix::fs::statvfs(&settings.data_dir) {
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        let free = DecimalBytes(free_bytes);
        findings.push(if free_bytes < MIN_FREE_BYTES {
            Fail(format!(
                "only {free} of disk space are free for {database}: when the disk is full, \
                 completions are refused. Free some space."
            ))
        } else {
            Pass(format!("{free} of disk space are free"))
        });
    }
    match store.keys().count().await {
        Ok(0) => findings.push(Note("no API keys yet: adriaticum keys create NAME".into())),
        Ok(keys) => findings.push(Pass(format!("API keys: {keys}"))),
        Err(error) => {
            findings.push(Fail(format!("the keys cannot be read: {error}. Restore the database from a backup.")))
        }
    }
    if deep {
        findings.push(match store.check_integrity().await {
            Ok(faults) if faults.is_empty() => Pass("the database is intact".into()),
            Ok(faults) => Fail(format!(
                "the database is damaged: {}. Restore it from a backup, or repair the server.",
                faults.join("; ")
            )),
            Err(error) => Fail(format!("the database cannot be read: {error}. Restore it from a backup.")),
        });
    }
    findings
}

/// Whether certificates match their keys, when they expire, and whether they cover the hosts.
fn certificates(settings: &Settings) -> Vec<Finding> {
    let certificates = match open_certificates(settings) {
        Ok(Some(certificates)) => certificates,
        Ok(None) => return Vec::new(),
        Err(error) => return vec![Fail(error.to_string())],
    };
    let now = SystemTime::now();
    let expiry = |(file, expiry): (std::path::PathBuf, SystemTime)| {
        let (file, until) = (file.display(), humantime::format_rfc3339_seconds(expiry));
        match expiry {
            expiry if expiry <= now => Fail(format!("{file} expired at {until}. Renew it.")),
            expiry if expiry < now + EXPIRY_WARNING => Note(format!("{file} expires at {until}: renew it soon")),
            _ => Pass(format!("{file} matches its key and is valid until {until}")),
        }
    };
    let mut findings: Vec<_> = certificates.expiries().into_iter().map(expiry).collect();
    let console = settings.console.listen.is_some().then_some(&settings.console.base_url);
    for base_url in [Some(&settings.api.base_url), console].into_iter().flatten() {
        let url = url::Url::parse(&base_url.origin).ok();
        let host = url.as_ref().and_then(url::Url::host_str).unwrap_or_default().trim_matches(['[', ']']);
        findings.push(match certificates.cover(host) {
            true => Pass(format!("there is a certificate for {host}")),
            false => Fail(format!(
                "no certificate covers {host}: clients of {base_url} will refuse the connection. Get one for that host."
            )),
        });
    }
    findings
}

async fn address(address: SocketAddr, setting: &str, ours: &[SocketAddr]) -> Finding {
    match TcpListener::bind(address).await {
        Ok(_) => Pass(format!("{address} is free to listen on")),
        Err(_) if ours.contains(&address) => {
            Note(format!("{address} is in use by a running service of this installation"))
        }
        Err(error) => Fail(listen_error(address, setting, &error).to_string()),
    }
}

/// Starts the embedded runtime and requests a completion from it.
async fn embedded(settings: &Settings) -> Finding {
    let Some((file, (pool, supervision))) = settings.model_file().zip(crate::embedded::prepare(settings)) else {
        let missing = "none: completions get 503. Set `model` to a GGUF file, or `runtime.urls` \
            (ADRIATICUM_RUNTIME_URLS) to the base URL of an OpenAI-compatible runtime, such as \
            http://127.0.0.1:8000/v1.";
        return Fail(missing.into());
    };
    let model = file.display().to_string();
    if file.is_dir() {
        return Fail(format!("{model} is a folder: completions get 503. Set `model` to a GGUF file."));
    }
    if !file.is_file() {
        return Fail(format!("{model} is not there: completions get 503. {}", settings.model_remedy()));
    }
    if let Err(error) = inspect(&file) {
        return Fail(error.to_string());
    }
    let supervisor = tokio::spawn(supervision);
    let started = tokio::time::timeout(LOAD_TIMEOUT, async {
        while pool.availability() == Availability::Starting {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        pool.availability()
    });
    let finding = match started.await {
        Ok(Availability::Available) => with_unmarked_roles(runtime(&model, pool.clone()).await, &pool).await,
        Ok(_) => {
            let fault = crate::embedded::model_fault(settings).await;
            Fail(fault.unwrap_or_else(|| format!("{model} cannot be loaded. See the messages above.")))
        }
        Err(_) => Fail(format!("{model} could not be loaded in ten minutes. See the messages above.")),
    };
    supervisor.abort();
    let _ = supervisor.await;
    finding
}

/// Adds which roles of the model's template can be forged.
async fn with_unmarked_roles(finding: Finding, pool: &Pool) -> Finding {
    let roles = pool.engines().await.into_iter().find_map(|(_, status)| status.unmarked_roles);
    match (finding, roles) {
        (Pass(found), Some(roles)) => Note(format!(
            "{found}; but its template ends messages of these roles by text alone: {roles}. A message that \
             contains that text can continue in another role's name: see docs/security.md"
        )),
        (finding, _) => finding,
    }
}

async fn search(settings: &Settings) -> Finding {
    if settings.grounding.is_none() {
        return Note("not checked: `grounding` is off".into());
    }
    if let Some(SearchUrl::Remote(url)) = &settings.search.url {
        return remote_search(settings, url).await;
    }
    let indexer = Indexer::new(settings.index_folder());
    if let Err(error) = crate::index::check(settings, &indexer).await {
        return Fail(format!("{error} Requests that need facts get 503 until then."));
    }
    match indexer.list() {
        Ok(collections) if collections.is_empty() => {
            let is_forced = settings.search.url.is_some() || settings.grounding == Some(Mode::Always);
            let consequence =
                if is_forced { "the prompt says that nothing was found" } else { "answers are not grounded" };
            Note(format!(
                "nothing is indexed, so {consequence}: index documents with `adriaticum index add DIR`, or set \
                 `search.url`"
            ))
        }
        Ok(collections) => {
            let documents: u64 = collections.iter().map(|collection| collection.documents).sum();
            let folders = count(collections.len() as u64, "folder");
            let documents = count(documents, "document");
            match embedder::check(settings).await {
                Ok(by) => Pass(format!("the index holds {documents} of {folders}, found by {by}")),
                Err(error) => Fail(format!("{error} Documents are found by their words alone until then.")),
            }
        }
        Err(error) => Fail(format!("{error}. Requests that need facts get 503 until then.")),
    }
}

async fn remote_search(settings: &Settings, url: &RemoteUrl) -> Finding {
    let checked = match RemoteSearch::new(url.clone(), settings.search.timeout) {
        Ok(remote) => remote.check().await.map(|finding| (remote, finding)),
        Err(error) => Err(error),
    };
    match checked {
        Ok((remote, finding)) => match embedder::check_remote(settings, &remote).await {
            Ok(None) => Pass(finding),
            Ok(Some(by)) => Pass(format!("{finding}, and found by {by}")),
            Err(error) => Fail(format!("{error} Documents are found by their words alone until then.")),
        },
        Err(error) => Fail(format!("{url}: {error}. Requests that need facts get 503 until then.")),
    }
}

/// Requests a completion of one token from a runtime.
async fn runtime(name: &dyn std::fmt::Display, pool: Arc<Pool>) -> Finding {
    for (_, result) in pool.check().await {
        if let Err(failure) = result {
            return Fail(format!("{name} does not answer: {failure}. Start it, or correct `runtime.urls`."));
        }
    }
    let message = Message::new(Role::User, "Say hello.".into());
    let request =
        message.and_then(|message| ChatRequest::new(vec![message], Temperature::default(), MaxTokens::new(1)?));
    let request = request.expect("one short message is a valid request");
    let trace = http::HeaderMap::new();
    let attribution = Attribution { id: RequestId::now(), key: None, person: None, trace: &trace };
    match PoolClient::new(pool.clone()).complete(&request, attribution, |_| {}).await {
        Ok(answered) => {
            let members = pool.status();
            let about = members.into_iter().find_map(|member| Some((member.model?, member.device)));
            let model = match about {
                Some((model, Some(device))) => format!(", model {model}, {device}"),
                Some((model, None)) => format!(", model {model}"),
                None => String::new(),
            };
            match answered.usage.total {
                Some(_) => Pass(format!("{name} completes and measures tokens{model}")),
                None => Note(format!("{name} completes but measures no tokens: usage will show null{model}")),
            }
        }
        Err(error) => Fail(format!("a completion failed: {error}. See the runtime's own log.")),
    }
}
