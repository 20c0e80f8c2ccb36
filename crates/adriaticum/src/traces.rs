//! Exports spans to a collector by OTLP over HTTP, in batches on a separate thread.
//!
//! The queue is bounded: when the collector is slow or down, spans are dropped and no request is delayed.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use url::Url;

use crate::error::CliError;
use crate::settings::Settings;

const SERVICE_NAME: &str = "adriaticum";
/// The variables of the OpenTelemetry specification.
const ENDPOINT_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last export may delay the stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Holds none if no collector is configured.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Starts exporting if a collector is configured, without waiting for it.
    pub(crate) fn start(settings: &Settings) -> Result<Self, CliError> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if settings.otlp.endpoint.is_none() && !ENDPOINT_VARIABLES.iter().any(is_set) {
            return Ok(Self(None));
        }
        let mut exporter =
            SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_timeout(EXPORT_TIMEOUT);
        if let Some(endpoint) = &settings.otlp.endpoint {
            exporter = exporter.with_endpoint(traces_url(endpoint));
        }
        let exporter = exporter.build().map_err(|error| {
            CliError::new(format!("traces cannot be sent: {error}. Correct `otlp.endpoint`, or unset it."))
        })?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.otlp.sample)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(Resource::builder().with_service_name(service_name()).build())
            .build();
        Ok(Self(Some(provider)))
    }

    pub(crate) fn tracer(&self) -> Option<SdkTracer> {
        self.0.as_ref().map(|provider| provider.tracer(SERVICE_NAME))
    }

    /// Exports the remaining spans. Blocks up to `SHUTDOWN_TIMEOUT`.
    pub(crate) fn stop(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT)
        {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// `OTEL_SERVICE_NAME` overrides the name, as in the specification.
fn service_name() -> String {
    std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| SERVICE_NAME.into())
}

fn traces_url(endpoint: &Url) -> String {
    format!("{}/v1/traces", endpoint.as_str().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_posted_below_the_base_url() {
        for (base, there) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("https://otel.example/collect/", "https://otel.example/collect/v1/traces"),
        ] {
            assert_eq!(traces_url(&base.parse().unwrap()), there);
        }
    }
}
