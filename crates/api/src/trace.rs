//! A request's trace: the context that its caller sent, and our own spans below it if a collector is configured.
//!
//! Without a collector nothing is recorded, but the caller's context is passed on. A span ends when it is dropped, so the
//! trace of a client that disconnects is complete. Spans hold figures and names, never text.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use chat::{MODEL, RequestId, TokenUsage};
use http::{HeaderMap, HeaderValue};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, TraceId, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};
use store::Outcome;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// The length of `traceparent` in its only version so far; later versions may be longer. The propagator would also accept
/// a shorter one, and derive different ids from it.
const TRACEPARENT_LEN: usize = 55;

pub(crate) struct RequestTrace<'w> {
    tracer: Option<&'w SdkTracer>,
    /// Holds our span of the whole request; without a collector the caller's span, if there is one.
    context: Option<Context>,
}

/// The span of one step; ends when it is dropped.
pub(crate) struct StepSpan {
    /// With its start. Boxed, because most installations collect no spans, and futures hold it.
    span: Option<Box<(Span, SystemTime)>>,
    headers: HeaderMap,
}

impl<'w> RequestTrace<'w> {
    /// Continues the caller's trace, if its headers carry one.
    pub(crate) fn begin(tracer: Option<&'w SdkTracer>, headers: Option<&HeaderMap>) -> Self {
        let caller = headers.and_then(caller_context);
        let context = match tracer {
            None => caller,
            Some(tracer) => {
                let attributes = [
                    KeyValue::new("gen_ai.operation.name", "chat"),
                    KeyValue::new("gen_ai.provider.name", MODEL),
                    KeyValue::new("gen_ai.request.model", MODEL),
                ];
                let span = tracer.span_builder("chat adriaticum").with_kind(SpanKind::Server);
                let span = span.with_attributes(attributes);
                let span = span.start_with_context(tracer, &caller.unwrap_or_default());
                Some(Context::new().with_span(span))
            }
        };
        Self { tracer, context }
    }

    pub(crate) fn id(&self) -> Option<TraceId> {
        let id = self.context.as_ref()?.span().span_context().trace_id();
        (id != TraceId::INVALID).then_some(id)
    }

    /// A step within our own process.
    pub(crate) fn span(&self, name: &'static str) -> StepSpan {
        StepSpan { span: self.start(name, SpanKind::Internal), headers: HeaderMap::new() }
    }

    /// A step that calls another service.
    pub(crate) fn client_span(&self, name: &'static str) -> StepSpan {
        let span = self.start(name, SpanKind::Client);
        let own = span.as_deref().map(|(span, _)| Context::new().with_remote_span_context(span.span_context().clone()));
        let headers = own.as_ref().or(self.context.as_ref()).map(headers_of).unwrap_or_default();
        StepSpan { span, headers }
    }

    fn start(&self, name: &'static str, kind: SpanKind) -> Option<Box<(Span, SystemTime)>> {
        let (tracer, context, now) = (self.tracer?, self.context.as_ref()?, SystemTime::now());
        let span = tracer.span_builder(name).with_kind(kind).with_start_time(now);
        Some(Box::new((span.start_with_context(tracer, context), now)))
    }

    pub(crate) fn end(&self, id: RequestId, outcome: Outcome, usage: &TokenUsage) {
        let Some(context) = self.context.as_ref().filter(|_| self.tracer.is_some()) else { return };
        let span = context.span();
        if !span.is_recording() {
            return;
        }
        span.set_attribute(KeyValue::new("gen_ai.response.id", id.to_string()));
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(outcome.status)));
        for (name, tokens) in
            [("gen_ai.usage.input_tokens", usage.prompt), ("gen_ai.usage.output_tokens", usage.completion)]
        {
            if let Some(tokens) = tokens {
                span.set_attribute(KeyValue::new(name, i64::from(tokens)));
            }
        }
        if let Some(code) = outcome.code {
            span.set_attribute(KeyValue::new("error.type", code));
        }
        // A caller's mistake does not fail the span.
        if outcome.status >= 500 {
            span.set_status(Status::error(outcome.code.unwrap_or_default()));
        }
        span.end();
    }
}

impl StepSpan {
    /// The trace context for the service that is called.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub(crate) fn set_runtime(&mut self, name: &str) {
        if let Some((span, _)) = self.span.as_deref_mut().filter(|(span, _)| span.is_recording()) {
            span.set_attribute(KeyValue::new("gen_ai.operation.name", "chat"));
            span.set_attribute(KeyValue::new("gen_ai.request.model", MODEL));
            span.set_attribute(KeyValue::new("server.address", name.to_owned()));
        }
    }

    /// The span gets the duration that is recorded, so that a trace shows the same figures as the ledger.
    pub(crate) fn end(mut self, is_ok: bool, took: Duration) {
        let Some((span, began)) = self.span.as_deref_mut() else { return };
        if !is_ok {
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(*began + took);
    }
}

/// The trace context in the caller's headers. A second `traceparent` makes it ambiguous, so neither is used. Several
/// `tracestate` are one list.
fn caller_context(headers: &HeaderMap) -> Option<Context> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let parent = parent.to_str().ok().filter(|parent| parent.len() >= TRACEPARENT_LEN)?;
    let states = headers.get_all(TRACESTATE).iter().map(|state| state.to_str());
    let state = states.collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
    let fields = HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned()), (TRACESTATE.to_owned(), state)]);
    Some(TraceContextPropagator::new().extract_with_context(&Context::new(), &fields))
}

/// The headers that pass a trace context on. An empty `tracestate`, which the propagator writes, is left out.
fn headers_of(context: &Context) -> HeaderMap {
    let mut fields = HashMap::new();
    TraceContextPropagator::new().inject_context(context, &mut fields);
    let mut headers = HeaderMap::new();
    for name in [TRACEPARENT, TRACESTATE] {
        let value = fields.remove(name).filter(|value: &String| !value.is_empty());
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The trace headers that a runtime gets for those of a caller, without a collector.
    fn passed_on(parents: &[&str], state: Option<&str>) -> (Option<String>, Option<String>) {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(TRACEPARENT, HeaderValue::from_str(parent).unwrap());
        }
        if let Some(state) = state {
            headers.append(TRACESTATE, HeaderValue::from_str(state).unwrap());
        }
        let span = RequestTrace::begin(None, Some(&headers)).client_span("inference");
        let text = |name| span.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        (text(TRACEPARENT), text(TRACESTATE))
    }

    #[test]
    fn a_valid_context_is_passed_on_as_it_came() {
        let state = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7";
        for (given, passed) in [(None, None), (Some(state), Some(state)), (Some("  "), None), (Some("a=\u{e9}"), None)]
        {
            assert_eq!(passed_on(&[GOOD], given), (Some(GOOD.into()), passed.map(Into::into)), "{given:?}");
        }
        assert_eq!(passed_on(&[GOOD], Some(&"a".repeat(513))).1, None);
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(passed_on(&[&format!("{later}-what-will-be")], None).0.as_deref(), Some(GOOD));
        assert_eq!(passed_on(&[&later], None).0.as_deref(), Some(GOOD));
    }

    #[test]
    fn an_invalid_context_is_not_passed_on() {
        for given in [
            "",
            "0",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(passed_on(&[given], Some("a=b")), (None, None), "{given}");
        }
        assert_eq!(passed_on(&[GOOD, GOOD], None), (None, None), "two of them");
    }
}
