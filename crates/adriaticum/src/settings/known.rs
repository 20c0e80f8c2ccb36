//! The table of all settings.

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
    Known { name: "database.timeout", default: "5s", meaning: "how long PostgreSQL may take to answer" },
    Known { name: "api.base_url", default: "http://localhost:8080/v1", meaning: "where callers reach the API; its host is the API's host. Unless set, it has the port of api.listen" },
    Known { name: "api.listen", default: "127.0.0.1:8080", meaning: "where the API listens" },
    Known { name: "api.threads", default: "auto", meaning: "threads that serve the API; auto is one per core" },
    Known { name: "api.max_connections", default: "4096", meaning: "open connections at the most" },
    Known { name: "api.max_requests", default: "1024", meaning: "completions under way at the most" },
    Known { name: "api.head_timeout", default: "10s", meaning: "how long a request's head may take to arrive" },
    Known { name: "api.body_timeout", default: "15s", meaning: "how long the next piece of a body may take to arrive" },
    Known { name: "api.idle_timeout", default: "75s", meaning: "how long a connection may rest between two requests" },
    Known { name: "api.stop_timeout", default: "30s", meaning: "how long requests under way may take to finish after SIGTERM" },
    Known { name: "api.drain", default: "0s", meaning: "how long requests are still answered after SIGTERM, before the stop begins: proxies in front need that to notice" },
    Known { name: "api.log_requests", default: "on", meaning: "whether the log tells of every request, without its text: on or off" },
    Known { name: "tls.certificate", default: "", meaning: "PEM files of certificates with their chains, comma-separated, for the API and the console: chosen by name, read again when they change; in the clear unless set" },
    Known { name: "tls.key", default: "", meaning: "PEM files of their private keys, in the same order" },
    Known { name: "trusted_proxies", default: "", meaning: "addresses and networks of proxies in front, comma-separated: visitors are whom their X-Forwarded-For names" },
    Known { name: "runtime.urls", default: "", meaning: "base URLs of OpenAI-shaped runtimes, comma-separated; a name with several addresses is several runtimes" },
    Known { name: "runtime.key", default: "", meaning: "the API key for those runtimes that have none of their own; one of its own stands in a URL, as in https://:KEY@HOST/v1" },
    Known { name: "runtime.timeout", default: "120s", meaning: "how long a completion may take, a retry included" },
    Known { name: "model", default: "", meaning: "a GGUF file for the embedded runtime, or none; model.gguf in data_dir unless set" },
    Known { name: "engine.cells", default: "auto", meaning: "tokens that the embedded runtime holds in mind, all requests together" },
    Known { name: "engine.requests", default: "24", meaning: "completions that it works on at the same time" },
    Known { name: "engine.queue", default: "256", meaning: "completions that may wait for it" },
    Known { name: "engine.wait", default: "30s", meaning: "how long they may wait" },
    Known { name: "ledger.retention", default: "90d", meaning: "how long single requests are kept; their sums are kept for good" },
    Known { name: "console.base_url", default: "http://localhost:8081", meaning: "where people reach the console. Unless set, it has the port of console.listen" },
    Known { name: "console.listen", default: "127.0.0.1:8081", meaning: "where the console listens; the API's address, too, if their hosts differ; or none" },
    Known { name: "ops.listen", default: "127.0.0.1:9464", meaning: "where health and metrics are served, or none" },
    Known { name: "search.url", default: "", meaning: "where facts are searched: local, searxng+http://HOST or opensearch+http://HOST/INDEX; local once something is indexed unless set" },
    Known { name: "search.timeout", default: "5s", meaning: "how long a search may take" },
    Known { name: "search.tokens", default: "1000", meaning: "tokens that what was found may take in a prompt" },
    Known { name: "grounding", default: "auto", meaning: "which requests get facts from Search: off, auto (those that need facts) or always" },
    Known { name: "otlp.endpoint", default: "", meaning: "where traces are sent by OTLP over HTTP, such as http://HOST:4318; none unless set, here or in OTEL_EXPORTER_OTLP_ENDPOINT" },
    Known { name: "otlp.sample", default: "1", meaning: "the part of the traces that are sent, from 0 to 1; where a caller sends a trace, it has decided" },
    Known { name: "log", default: "info", meaning: "how much is logged: error, warn, info, debug or trace" },
];

/// Settings that a running service takes over when it is told to read them again; the runtimes' only while there are some.
pub(crate) const RELOADED: &[&str] = &["runtime.urls", "runtime.key", "runtime.timeout"];
