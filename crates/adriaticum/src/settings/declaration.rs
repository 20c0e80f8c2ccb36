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
    /// The value is never shown.
    pub(crate) is_secret: bool,
    /// The value is a URL, of which only scheme, host and port are shown.
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
            /// Warnings about unknown environment variables.
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
            /// The errors of all values.
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
    /// folder for all data
    data_dir: PathBuf = "data" => folder;
    /// sqlite:PATH, or postgres://USER:PASSWORD@HOST/NAME for several replicas; defaults to adriaticum.db in data_dir
    database_url: Option<DatabaseUrl> = "" => database_url;
    /// IP addresses and networks of reverse proxies, comma-separated; the client's address is read from their
    /// X-Forwarded-For header
    trusted_proxies: TrustedProxies = "" => from_str;
    /// GGUF file for the embedded runtime, or none; defaults to model.gguf in data_dir
    model: Model = "" => model;
    /// which requests get sources: off, auto (those that need facts, and those that indexed documents help with) or always
    grounding: Option<Mode> = "auto" => grounding_mode;
    /// log level: error, warn, info, debug or trace
    log: String = "info" => log_level;

    [database: DatabaseSection]
    /// max. connections of a replica's PostgreSQL pool; each replica opens 4 more outside of the pool
    connections: usize = "8" => count;
    /// timeout of a response from PostgreSQL
    timeout: Duration = "5s" => duration;

    [api: ApiSection]
    /// public URL of the API; requests to another host get 404. The default has the port of api.listen
    base_url: BaseUrl = "http://localhost:8080/v1" => api_base_url;
    /// address and port of the API's listener
    listen: SocketAddr = "127.0.0.1:8080" => address;
    /// worker threads of the API; auto is 1 per core
    threads: usize = "auto" => threads;
    /// max. open connections
    max_connections: usize = "4096" => count;
    /// max. completions in flight
    max_requests: usize = "1024" => count;
    /// max. memory for the bodies of requests that are being received or are in flight
    max_body_memory: usize = "32MiB" => bytes;
    /// timeout for receiving a request's head
    head_timeout: Duration = "10s" => duration;
    /// timeout for receiving the next part of a body
    body_timeout: Duration = "15s" => duration;
    /// timeout of a connection that is idle between requests
    idle_timeout: Duration = "75s" => duration;
    /// how long requests in flight may take to finish after SIGTERM
    stop_timeout: Duration = "30s" => duration;
    /// delay between SIGTERM and the stop: requests are still served, and /readyz returns 503 for load balancers
    drain: Duration = "0s" => duration_or_zero;
    /// log every request, without its text: on or off
    log_requests: bool = "on" => on_or_off;

    [tls: TlsSection]
    /// PEM files of certificates with their chains, comma-separated, for the API and the console; selected by server
    /// name, and reloaded when they change. No TLS if unset
    certificate: Vec<PathBuf> = "" => paths;
    /// PEM files of the private keys, in the order of tls.certificate
    key: Vec<PathBuf> = "" => paths;

    [runtime: RuntimeSection]
    /// base URLs of OpenAI-compatible runtimes, comma-separated; a host name with several addresses counts as several
    /// runtimes
    urls: Vec<RuntimeUrl> = "" => runtime_urls, is_reloadable;
    /// API key for the runtimes; a key in a URL overrides it, as in https://:KEY@HOST/v1
    key: Option<RuntimeKey> = "" => optional, is_secret, is_reloadable;
    /// timeout of a completion, including a retry
    timeout: Duration = "120s" => duration, is_reloadable;
    /// split text in messages that looks like a control token, for runtimes other than our engine: on or off
    guard: bool = "on" => on_or_off, is_reloadable;

    [engine: EngineSection]
    /// size of the engine's KV cache in tokens, shared by all requests
    cells: Option<usize> = "auto" => count_or_auto;
    /// max. completions that run concurrently; auto is 24, or 128 if GPUs compute the whole model
    requests: Option<usize> = "auto" => count_or_auto;
    /// max. completions in the queue
    queue: usize = "256" => count;
    /// max. time of a completion in the queue
    wait: Duration = "30s" => duration;
    /// scope in which prompts share a cached common prefix, which is computed once: everyone, person or key
    sharing: Sharing = "everyone" => sharing;
    /// CPU kernels: auto (the fastest on this machine) or library (llama.cpp's own)
    kernels: KernelsChoice = "auto" => kernels;
    /// GPU offload: auto (all GPUs, as many layers as fit), off, a device such as CUDA0, or a number of layers
    gpu: GpuChoice = "auto" => gpu;
    /// format of the model's weights: auto (on GPUs, another format than the file's if it is faster and as good), file
    /// (as in the file), q8_0 or bf16; a converted copy is stored in data_dir
    weights: WeightsChoice = "auto" => weights;

    [ledger: LedgerSection]
    /// how long individual requests are kept; roll-ups are kept forever
    retention: Duration = "90d" => duration;

    [console: ConsoleSection]
    /// public URL of the console. The default has the port of console.listen
    base_url: BaseUrl = "http://localhost:8081" => console_base_url;
    /// address and port of the console's listener, or none; can equal api.listen if the hosts of the base URLs differ
    listen: Option<SocketAddr> = "127.0.0.1:8081" => address_or_none;
    /// sign-in with passwords and passkeys that are stored here: on, or off if all users sign in at oidc.issuer
    passwords: bool = "on" => on_or_off;
    /// max. active keys of a person; keys created on the command line have no owner and do not count
    keys_per_person: u64 = "100" => from_str;

    [ops: OpsSection]
    /// address and port of the listener for health and metrics, or none
    listen: Option<SocketAddr> = "127.0.0.1:9464" => address_or_none;

    [search: SearchSection]
    /// search backend: local, searxng+http://HOST or opensearch+http://HOST/INDEX; defaults to local once documents are
    /// indexed
    url: Option<SearchUrl> = "" => optional;
    /// embeddings for semantic search: on (a sentence encoder that `index add` downloads), the URL of an embeddings
    /// server such as http://HOST:8000/v1, a GGUF file of an embedding model, or off (keyword search only)
    embeddings: Embeddings = "on" => from_str;
    /// name of the model at the embeddings server; defaults to the first that it lists
    embeddings_model: Option<String> = "" => optional;
    /// prefix that the embedding model requires before a question, such as "search_query: "
    question_prefix: String = "" => from_str;
    /// prefix that the embedding model requires before a passage, such as "search_document: "
    passage_prefix: String = "" => from_str;
    /// timeout of a search
    timeout: Duration = "5s" => duration;
    /// max. tokens of search results in a prompt
    tokens: usize = "1000" => count;

    [oidc: OidcSection]
    /// issuer URL of the OpenID Connect provider for sign-in to the console, such as https://login.example.com; none if
    /// unset
    issuer: Option<Url> = "" => endpoint;
    /// client ID of the console at the provider
    client_id: String = "adriaticum" => from_str;
    /// client secret at the provider, if it requires one
    client_secret: Option<String> = "" => optional, is_secret;
    /// name of the provider, for the button "Sign in with NAME"
    name: String = "single sign-on" => from_str;
    /// scopes to request, in addition to openid
    scopes: Vec<String> = "profile,email" => texts;
    /// claim with a person's groups, or its path, such as realm_access.roles
    groups_claim: String = "groups" => from_str;
    /// groups whose members may sign in; if unset, all users of the provider
    allowed_groups: Vec<String> = "" => texts;
    /// groups whose members are administrators; if unset, roles are assigned in the console
    admin_groups: Vec<String> = "" => texts;
    /// treat e-mail addresses as verified even if the provider does not say so: on or off. Only for providers whose users
    /// cannot choose their address, such as Microsoft Entra ID, or Keycloak with a directory
    trust_email: bool = "off" => on_or_off;

    [webhook: WebhookSection]
    /// URL for notifications: budgets that reach 80 and 100 %, keys that expire within a week; none if unset
    url: Option<Url> = "" => endpoint, has_secret_path;
    /// secret that signs notifications, as in Standard Webhooks: whsec_ and base64, or any text
    key: Option<String> = "" => optional, is_secret;

    [otlp: OtlpSection]
    /// endpoint for traces by OTLP over HTTP, such as http://HOST:4318; defaults to OTEL_EXPORTER_OTLP_ENDPOINT, or
    /// none
    endpoint: Option<Url> = "" => endpoint;
    /// fraction of traces to send, from 0 to 1; for a trace that a caller has started, the caller decides
    sample: f64 = "1" => fraction;
}
