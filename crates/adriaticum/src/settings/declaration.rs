//! Every setting, declared once: name, type, default, parser and description.
//!
//! From the declaration follow the fields of `Settings`, nested as in the file, how they are parsed, and the list
//! `SETTINGS`, from which the environment variables, `adriaticum config` and docs/configuration.md are made.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use engine::{GpuChoice, KernelsChoice, Sharing, WeightsChoice};
use grounding::Mode;
use grounding::search::SearchUrl;
use runtimes::{RuntimeKey, RuntimeUrl};
use transport::{BaseUrl, TrustedProxies};
use url::Url;

use super::parse::*;
use super::values::Values;
use crate::error::CliError;

pub(crate) struct Setting {
    /// As in a flag: `data_dir` or `api.listen`.
    pub(crate) name: &'static str,
    /// Empty: not set.
    pub(crate) default: &'static str,
    pub(crate) description: &'static str,
    /// Its value is never shown.
    pub(crate) is_secret: bool,
    /// Of its value, a URL, only scheme, host and port are shown.
    pub(crate) has_secret_path: bool,
    /// SIGHUP applies a changed value to a running service that uses remote runtimes.
    pub(crate) is_reloadable: bool,
}

impl Setting {
    const fn new(name: &'static str, default: &'static str, description: &'static str) -> Self {
        Self { name, default, description, is_secret: false, has_secret_path: false, is_reloadable: false }
    }
}

/// `name: Type = "default" => parser, flags;` with the description as doc comment; `[name: Type]` begins a section.
macro_rules! settings {
    (
        $($(#[doc = $line:literal])+ $name:ident: $type:ty = $default:literal => $parse:expr $(, $flag:ident)*;)*
        $(
            [$section:ident: $Section:ident]
            $($(#[doc = $in_line:literal])+
            $in_name:ident: $in_type:ty = $in_default:literal => $in_parse:expr $(, $in_flag:ident)*;)*
        )*
    ) => {
        /// The settings in force.
        pub(crate) struct Settings {
            $(pub(crate) $name: $type,)*
            $(pub(crate) $section: $Section,)*
            pub(super) values: Values,
            /// What is odd about the configuration, but not wrong.
            pub(crate) warnings: Vec<String>,
        }

        $(pub(crate) struct $Section { $(pub(crate) $in_name: $in_type,)* })*

        pub(crate) const SETTINGS: &[Setting] = &[
            $(Setting {
                $($flag: true,)*
                ..Setting::new(stringify!($name), $default, concat!($($line),+).trim_ascii())
            },)*
            $($(Setting {
                $($in_flag: true,)*
                ..Setting::new(
                    concat!(stringify!($section), ".", stringify!($in_name)),
                    $in_default,
                    concat!($($in_line),+).trim_ascii(),
                )
            },)*)*
        ];

        impl Settings {
            /// What is wrong with the values, if anything is.
            pub(super) fn faults(values: &Values) -> Vec<CliError> {
                let mut faults = Vec::new();
                $(faults.extend(values.parse::<$type>(stringify!($name), $parse).err());)*
                $($(faults.extend(
                    values.parse::<$in_type>(concat!(stringify!($section), ".", stringify!($in_name)), $in_parse).err(),
                );)*)*
                faults
            }

            pub(super) fn parse(values: Values, warnings: Vec<String>) -> Result<Self, CliError> {
                Ok(Self {
                    $($name: values.parse(stringify!($name), $parse)?,)*
                    $($section: $Section {
                        $($in_name: values.parse(
                            concat!(stringify!($section), ".", stringify!($in_name)),
                            $in_parse,
                        )?,)*
                    },)*
                    values,
                    warnings,
                })
            }
        }
    };
}

settings! {
    /// the folder for all data
    data_dir: PathBuf = "data" => folder;
    /// sqlite:PATH, or postgres://USER:PASSWORD@HOST/NAME for several replicas; adriaticum.db in data_dir unless set
    database_url: Option<DatabaseUrl> = "" => database_url;
    /// addresses and networks of reverse proxies, comma-separated: the client's address is taken from their
    /// X-Forwarded-For
    trusted_proxies: TrustedProxies = "" => from_str;
    /// a GGUF file for the embedded runtime, or none; model.gguf in data_dir unless set
    model: Model = "" => model;
    /// which requests get facts from Search: off, auto (those that need facts) or always
    grounding: Option<Mode> = "auto" => grounding_mode;
    /// how much is logged: error, warn, info, debug or trace
    log: String = "info" => log_level;

    [database: DatabaseSection]
    /// max. connections to PostgreSQL, beside four of each replica's own
    connections: usize = "8" => count;
    /// how long PostgreSQL may take to answer
    timeout: Duration = "5s" => duration;

    [api: ApiSection]
    /// where callers reach the API; its host is the API's host. Unless set, it has the port of api.listen
    base_url: BaseUrl = "http://localhost:8080/v1" => api_base_url;
    /// where the API listens
    listen: SocketAddr = "127.0.0.1:8080" => address;
    /// threads that serve the API; auto is one per core
    threads: usize = "auto" => threads;
    /// max. open connections
    max_connections: usize = "4096" => count;
    /// max. completions in flight
    max_requests: usize = "1024" => count;
    /// max. memory for the bodies of requests that arrive or are in flight
    max_body_memory: usize = "32MiB" => bytes;
    /// how long a request's head may take to arrive
    head_timeout: Duration = "10s" => duration;
    /// how long the next part of a body may take to arrive
    body_timeout: Duration = "15s" => duration;
    /// how long a connection may be idle between two requests
    idle_timeout: Duration = "75s" => duration;
    /// how long requests in flight may take to finish after SIGTERM
    stop_timeout: Duration = "30s" => duration;
    /// how long requests are still answered after SIGTERM before the stop begins, so that load balancers can notice
    drain: Duration = "0s" => duration_or_zero;
    /// whether every request is logged, without its text: on or off
    log_requests: bool = "on" => on_or_off;

    [tls: TlsSection]
    /// PEM files of certificates with their chains, comma-separated, for the API and the console: chosen by name,
    /// reloaded when they change; no TLS unless set
    certificate: Vec<PathBuf> = "" => paths;
    /// PEM files of their private keys, in the same order
    key: Vec<PathBuf> = "" => paths;

    [runtime: RuntimeSection]
    /// base URLs of OpenAI-compatible runtimes, comma-separated; a name with several addresses is several runtimes
    urls: Vec<RuntimeUrl> = "" => runtime_urls, is_reloadable;
    /// the API key for the runtimes; a URL can hold another one, as in https://:KEY@HOST/v1
    key: Option<RuntimeKey> = "" => optional, is_secret, is_reloadable;
    /// how long a completion may take, including a retry
    timeout: Duration = "120s" => duration, is_reloadable;
    /// on or off: whether what looks like a control token in a message is broken for runtimes that are not our engine
    guard: bool = "on" => on_or_off, is_reloadable;

    [engine: EngineSection]
    /// size of the embedded runtime's KV cache in tokens, for all requests together
    cells: Option<usize> = "auto" => count_or_auto;
    /// max. completions that run at the same time; auto is 24, and 128 if a GPU computes everything
    requests: Option<usize> = "auto" => count_or_auto;
    /// max. completions that wait in the queue
    queue: usize = "256" => count;
    /// how long they may wait
    wait: Duration = "30s" => duration;
    /// whose prompts share what they begin with, so that it is computed once: everyone's, those of a person, or of a key
    sharing: Sharing = "everyone" => sharing;
    /// which kernels compute on CPUs: auto (the fastest on this machine) or library (llama.cpp's own)
    kernels: KernelsChoice = "auto" => kernels;
    /// which GPUs compute: auto (those that there are, as much as fits), off, a device such as CUDA0, or a number of layers
    gpu: GpuChoice = "auto" => gpu;
    /// form of the model's weights: auto (on GPUs another one than the file's if it is faster and as good), file (as they
    /// are in the file), q8_0 or bf16; the changed copy lies in data_dir
    weights: WeightsChoice = "auto" => weights;

    [ledger: LedgerSection]
    /// how long single requests are kept; roll-ups are kept for good
    retention: Duration = "90d" => duration;

    [console: ConsoleSection]
    /// where people reach the console. Unless set, it has the port of console.listen
    base_url: BaseUrl = "http://localhost:8081" => console_base_url;
    /// where the console listens; may be the API's address if their hosts differ; or none
    listen: Option<SocketAddr> = "127.0.0.1:8081" => address_or_none;
    /// whether people can sign in with a password or passkey that is kept here: on, or off if all sign in at oidc.issuer
    passwords: bool = "on" => on_or_off;
    /// max. active keys of a person; keys that are made at the command line have no owner and do not count
    keys_per_person: u64 = "100" => from_str;

    [ops: OpsSection]
    /// where health and metrics are served, or none
    listen: Option<SocketAddr> = "127.0.0.1:9464" => address_or_none;

    [search: SearchSection]
    /// where facts are searched: local, searxng+http://HOST or opensearch+http://HOST/INDEX; unless set, local once
    /// something is indexed
    url: Option<SearchUrl> = "" => optional;
    /// what finds documents by what they mean: on (a sentence encoder that `index add` downloads), the URL of an embeddings
    /// server such as http://HOST:8000/v1, a GGUF file of an embedding model, or off (documents are found by their words)
    embeddings: Embeddings = "on" => from_str;
    /// the model's name at the embeddings server; unless set, the first that it lists
    embeddings_model: Option<String> = "" => optional;
    /// what the embedding model wants before a question, such as "search_query: "
    question_prefix: String = "" => from_str;
    /// what it wants before a passage, such as "search_document: "
    passage_prefix: String = "" => from_str;
    /// how long a search may take
    timeout: Duration = "5s" => duration;
    /// max. tokens of search results in a prompt
    tokens: usize = "1000" => count;

    [oidc: OidcSection]
    /// the identity provider at which people sign in to the console, by OpenID Connect: its issuer, such as
    /// https://login.example.com; none unless set
    issuer: Option<Url> = "" => endpoint;
    /// the console's client id there
    client_id: String = "adriaticum" => from_str;
    /// the client's password there, if it has one
    client_secret: Option<String> = "" => optional, is_secret;
    /// the provider's name, for the button "Sign in with NAME"
    name: String = "single sign-on" => from_str;
    /// what is asked for, beside openid
    scopes: Vec<String> = "profile,email" => texts;
    /// the claim with a person's groups; a path such as realm_access.roles is possible
    groups_claim: String = "groups" => from_str;
    /// groups whose members may sign in; unless set, everybody whom the provider knows
    allowed_groups: Vec<String> = "" => texts;
    /// groups whose members are administrators; unless set, roles are given in the console
    admin_groups: Vec<String> = "" => texts;
    /// whether addresses count as verified though the provider does not say so: on for one where nobody chooses their
    /// own, such as Microsoft Entra ID, or Keycloak over a directory
    trust_email: bool = "off" => on_or_off;

    [webhook: WebhookSection]
    /// where notices are posted: budgets that reach 80 and 100 %, keys that expire within a week; none unless set
    url: Option<Url> = "" => endpoint, has_secret_path;
    /// what they are signed with, as Standard Webhooks says: whsec_ and base64, or any text
    key: Option<String> = "" => optional, is_secret;

    [otlp: OtlpSection]
    /// where traces are sent by OTLP over HTTP, such as http://HOST:4318; none unless set, here or in
    /// OTEL_EXPORTER_OTLP_ENDPOINT
    endpoint: Option<Url> = "" => endpoint;
    /// the fraction of traces that are sent, from 0 to 1; for a trace that a caller has started, the caller decides
    sample: f64 = "1" => fraction;
}
