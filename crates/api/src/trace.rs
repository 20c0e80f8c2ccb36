//! A request's trace: the context that its caller sent, and our own spans below it where a collector is configured.
//!
//! Without a collector nothing is recorded; the caller's context is passed on all the same. A span ends when it is
//! dropped, so that a client that disconnects leaves a whole trace. Spans hold figures and names, never text.

use chat::{MODEL, RequestId, TokenUsage, Trace};
use http::HeaderMap;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use store::Outcome;

pub(crate) struct RequestTrace<'w> {
    given: Option<Trace>,
    server: Option<ServerSpan<'w>>,
}

/// The span of the whole request, in a context for its children.
struct ServerSpan<'w> {
    tracer: &'w SdkTracer,
    context: Context,
}

/// The span of one step; ends when it is dropped.
pub(crate) struct StepSpan {
    span: Option<Span>,
    trace: Option<Trace>,
}

impl<'w> RequestTrace<'w> {
    /// Continues the caller's trace, if its headers carry one.
    pub(crate) fn begin(tracer: Option<&'w SdkTracer>, headers: Option<&HeaderMap>) -> Self {
        let given = headers.and_then(given);
        let server = tracer.map(|tracer| {
            let before = given
                .as_ref()
                .map_or_else(Context::new, |given| Context::new().with_remote_span_context(remote(given)));
            let attributes = [
                KeyValue::new("gen_ai.operation.name", "chat"),
                KeyValue::new("gen_ai.provider.name", MODEL),
                KeyValue::new("gen_ai.request.model", MODEL),
            ];
            let span = tracer.span_builder("chat adriaticum").with_kind(SpanKind::Server).with_attributes(attributes);
            ServerSpan { tracer, context: Context::new().with_span(span.start_with_context(tracer, &before)) }
        });
        Self { given, server }
    }

    pub(crate) fn id(&self) -> Option<TraceId> {
        match &self.server {
            Some(server) => Some(server.context.span().span_context().trace_id()),
            None => self.given.as_ref().map(|given| TraceId::from_bytes(given.id)),
        }
    }

    /// A step within our own process.
    pub(crate) fn span(&self, name: &'static str) -> StepSpan {
        self.start(name, SpanKind::Internal)
    }

    /// A step that calls another service.
    pub(crate) fn client_span(&self, name: &'static str) -> StepSpan {
        self.start(name, SpanKind::Client)
    }

    fn start(&self, name: &'static str, kind: SpanKind) -> StepSpan {
        let given = self.given.as_ref();
        let span = self.server.as_ref().map(|server| {
            server.tracer.span_builder(name).with_kind(kind).start_with_context(server.tracer, &server.context)
        });
        let place = span.as_ref().map(|span| span.span_context()).filter(|place| place.is_valid());
        let trace = match place {
            Some(place) => Some(Trace::new(
                place.trace_id().to_bytes(),
                place.span_id().to_bytes(),
                place.trace_flags().to_u8(),
                given,
            )),
            None => given.cloned(),
        };
        StepSpan { span, trace }
    }

    pub(crate) fn end(&self, id: RequestId, outcome: Outcome, usage: &TokenUsage) {
        let Some(server) = &self.server else { return };
        let span = server.context.span();
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
        // A caller's error is no error of the service.
        if outcome.status >= 500 {
            span.set_status(Status::error(outcome.code.unwrap_or_default()));
        }
        span.end();
    }
}

impl StepSpan {
    /// The context for the service that is called.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    pub(crate) fn set_runtime(&mut self, name: &str) {
        if let Some(span) = self.span.as_mut().filter(|span| span.is_recording()) {
            span.set_attribute(KeyValue::new("gen_ai.operation.name", "chat"));
            span.set_attribute(KeyValue::new("gen_ai.request.model", MODEL));
            span.set_attribute(KeyValue::new("server.address", name.to_owned()));
        }
    }

    pub(crate) fn end(mut self, is_ok: bool) {
        if let (Some(span), false) = (&mut self.span, is_ok) {
            span.set_status(Status::error(""));
        }
    }
}

/// The caller's trace context. A second `traceparent` makes it ambiguous, so it is ignored.
fn given(headers: &HeaderMap) -> Option<Trace> {
    let mut parents = headers.get_all("traceparent").iter();
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let states = headers.get_all("tracestate").iter().map(|state| state.to_str());
    let state = states.collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
    Trace::parse(parent.to_str().ok()?, Some(&state))
}

fn remote(given: &Trace) -> SpanContext {
    let state = given.state().and_then(|state| state.parse().ok()).unwrap_or(TraceState::NONE);
    let (id, span) = (TraceId::from_bytes(given.id), SpanId::from_bytes(given.span));
    SpanContext::new(id, span, TraceFlags::new(given.flags & 1), true, state)
}
