//! Where spans go: to a collector, by OTLP over HTTP, in batches from a thread of their own.
//!
//! What waits is bounded: when the collector is slow or away, spans are lost and no request notices.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use url::Url;

use crate::error::CliError;
use crate::settings::Settings;

const NAME: &str = "adriaticum";
/// Variables that mean the same to everything that speaks OTLP.
const VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// How long the collector may take for a batch.
const EXPORT: Duration = Duration::from_secs(5);
/// How long the last spans may hold up the stop.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// What sends spans; nothing if nobody collects them.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Starts sending if there is somebody to send to. That they are there is not waited for.
    pub(crate) fn start(settings: &Settings) -> Result<Self, CliError> {
        let told = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if settings.otlp_endpoint.is_none() && !VARIABLES.iter().any(told) {
            return Ok(Self(None));
        }
        let mut exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_timeout(EXPORT);
        if let Some(endpoint) = &settings.otlp_endpoint {
            exporter = exporter.with_endpoint(traces_of(endpoint));
        }
        let exporter = exporter.build().map_err(|error| {
            CliError::new(format!("traces cannot be sent: {error}. Correct `otlp.endpoint`, or unset it."))
        })?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.otlp_sample)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(Resource::builder().with_service_name(service_name()).build())
            .build();
        Ok(Self(Some(provider)))
    }

    /// What makes spans.
    pub(crate) fn tracer(&self) -> Option<SdkTracer> {
        self.0.as_ref().map(|provider| provider.tracer(NAME))
    }

    /// Sends what is left. Blocks for a moment.
    pub(crate) fn stop(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown_with_timeout(LAST_EXPORT)
        {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// The standard's variable has the last word on the name.
fn service_name() -> String {
    std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| NAME.into())
}

/// Where a collector takes spans, below its base URL.
fn traces_of(endpoint: &Url) -> String {
    format!("{}/v1/traces", endpoint.as_str().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_below_the_base_url() {
        for (base, there) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("https://otel.example/collect/", "https://otel.example/collect/v1/traces"),
        ] {
            assert_eq!(traces_of(&base.parse().unwrap()), there);
        }
    }
}
