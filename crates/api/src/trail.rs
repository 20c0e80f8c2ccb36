//! One request's trail in a trace: the place that its caller sent, and our own spans behind it where anybody collects them.
//!
//! Without a collector nothing is recorded; what the caller sent is passed on all the same. A span ends when it is dropped,
//! so that a caller who hangs up leaves a whole trail. Spans hold figures and names, never text.

use chat::{MODEL, RequestId, TokenUsage, Trace};
use http::HeaderMap;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use store::Outcome;

/// What a request's trail is in.
pub(crate) struct Trail<'d> {
    given: Option<Trace>,
    own: Option<Own<'d>>,
}

struct Own<'d> {
    tracer: &'d SdkTracer,
    /// Holds the span of the whole request.
    context: Context,
}

/// A part of the request's way; its span ends with it.
pub(crate) struct Phase {
    span: Option<Span>,
    trace: Option<Trace>,
}

impl<'d> Trail<'d> {
    /// Goes on from where the caller is, if its headers say so.
    pub(crate) fn begin(tracer: Option<&'d SdkTracer>, headers: Option<&HeaderMap>) -> Self {
        let given = headers.and_then(given);
        let own = tracer.map(|tracer| {
            let before = given
                .as_ref()
                .map_or_else(Context::new, |given| Context::new().with_remote_span_context(remote(given)));
            let attributes = [
                KeyValue::new("gen_ai.operation.name", "chat"),
                KeyValue::new("gen_ai.provider.name", MODEL),
                KeyValue::new("gen_ai.request.model", MODEL),
            ];
            let span = tracer.span_builder("chat adriaticum").with_kind(SpanKind::Server).with_attributes(attributes);
            Own { tracer, context: Context::new().with_span(span.start_with_context(tracer, &before)) }
        });
        Self { given, own }
    }

    /// The trace's id, for whoever wants to find it.
    pub(crate) fn id(&self) -> Option<TraceId> {
        match &self.own {
            Some(own) => Some(own.context.span().span_context().trace_id()),
            None => self.given.as_ref().map(|given| TraceId::from_bytes(given.id)),
        }
    }

    /// A part of the way within our own process.
    pub(crate) fn phase(&self, name: &'static str) -> Phase {
        self.part(name, SpanKind::Internal)
    }

    /// A part of the way on which somebody else is asked.
    pub(crate) fn errand(&self, name: &'static str) -> Phase {
        self.part(name, SpanKind::Client)
    }

    fn part(&self, name: &'static str, kind: SpanKind) -> Phase {
        let given = self.given.as_ref();
        let span = self
            .own
            .as_ref()
            .map(|own| own.tracer.span_builder(name).with_kind(kind).start_with_context(own.tracer, &own.context));
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
        Phase { span, trace }
    }

    /// Writes down how the whole request ended.
    pub(crate) fn end(&self, id: RequestId, outcome: Outcome, usage: &TokenUsage) {
        let Some(own) = &self.own else { return };
        let span = own.context.span();
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
        // What a caller did wrong is no fault of the service.
        if outcome.status >= 500 {
            span.set_status(Status::error(outcome.code.unwrap_or_default()));
        }
        span.end();
    }
}

impl Phase {
    /// The place from which others are asked.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Writes down who was asked.
    pub(crate) fn asked(&mut self, name: &str) {
        if let Some(span) = self.span.as_mut().filter(|span| span.is_recording()) {
            span.set_attribute(KeyValue::new("gen_ai.operation.name", "chat"));
            span.set_attribute(KeyValue::new("gen_ai.request.model", MODEL));
            span.set_attribute(KeyValue::new("server.address", name.to_owned()));
        }
    }

    /// Ends it; whether it went well is written down.
    pub(crate) fn end(mut self, well: bool) {
        if let (Some(span), false) = (&mut self.span, well) {
            span.set_status(Status::error(""));
        }
    }
}

/// What the caller's headers say. Where `traceparent` stands twice, nobody knows which one is meant.
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
