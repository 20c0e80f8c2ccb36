//! The charts of the usage page, and latencies by phase.

use chat::Timestamp;
use format::number;
use maud::{Markup, html};
use store::{Latencies, Phase, Step, UsageGroup};

use crate::page::{Fields, failed};
use crate::usage::chart::{Chart, ChartKind, Series, TimeSlot};
use crate::usage::page::UsageView;

const PERCENTILES: [(&str, &str, f64); 3] = [("p50", "low", 0.5), ("p95", "middle", 0.95), ("p99", "high", 0.99)];

/// Requests, tokens and latencies over time.
pub(crate) fn charts(view: &UsageView) -> Markup {
    html! { div.charts { (requests_chart(view)) (tokens_chart(view)) (latency_chart(view)) } }
}

/// One value for every slice of the range: the report leaves out slices without requests.
fn values(view: &UsageView, value: impl Fn(Option<&UsageGroup>) -> Option<f64>) -> Vec<Option<f64>> {
    let mut slices = view.report.by_time.iter().peekable();
    let at = |start: &Timestamp| {
        while slices.next_if(|slice| slice.start() < Some(*start)).is_some() {}
        value(slices.next_if(|slice| slice.start() == Some(*start)))
    };
    view.range.slices.iter().map(at).collect()
}

fn chart<'a>(title: &'a str, view: &UsageView, kind: ChartKind, series: Vec<Series<'a>>) -> Chart<'a> {
    let slot =
        |start: &Timestamp| TimeSlot { start: start.as_millis(), name: format::slice_name(*start, view.range.step) };
    let slice_millis = match view.range.step {
        Step::Hour => 3_600_000,
        Step::Day => 86_400_000,
    };
    let slices = view.range.slices.iter().map(slot).collect();
    let base = Chart { title, slices, slice_millis, series, kind, write: format::micros, axis: format::micros_of };
    match kind {
        ChartKind::Bars => {
            Chart { write: |count| number(count as u64), axis: |count, _| format::short_number(count), ..base }
        }
        ChartKind::Lines => base,
    }
}

fn requests_chart(view: &UsageView) -> Markup {
    let succeeded = values(view, |slice| Some(slice.map_or(0, |slice| slice.succeeded) as f64));
    let failures = values(view, |slice| Some(slice.map_or(0, |slice| failed(&slice.figures, slice.succeeded)) as f64));
    let series = vec![
        Series { name: "succeeded", class: "good", values: succeeded },
        Series { name: "failed", class: "bad", values: failures },
    ];
    chart("Requests", view, ChartKind::Bars, series).render()
}

fn tokens_chart(view: &UsageView) -> Markup {
    let sum = |of: fn(&UsageGroup) -> Option<u64>| values(view, |slice| slice.and_then(of).map(|sum| sum as f64));
    let series = vec![
        Series { name: "prompt tokens", class: "first", values: sum(|slice| slice.figures.prompt.get()) },
        Series { name: "completion tokens", class: "second", values: sum(|slice| slice.figures.completion.get()) },
    ];
    chart("Tokens", view, ChartKind::Bars, series).render()
}

fn latency_chart(view: &UsageView) -> Markup {
    let series = PERCENTILES.map(|(name, class, share)| {
        let percentile = |slice: &UsageGroup| slice.latencies.percentile(view.phase, share);
        let values = values(view, |slice| slice.and_then(percentile).map(|time| time.as_micros() as f64));
        Series { name, class, values }
    });
    let title = match view.phase {
        Phase::Total => "Latency".to_owned(),
        phase => format!("Latency: {}", phase.as_str()),
    };
    chart(&title, view, ChartKind::Lines, series.into_iter().collect()).render()
}

pub(crate) fn phases(query: &Fields, view: &UsageView) -> Markup {
    let (latencies, failed) = (&view.report.latencies, &view.report.failed_latencies);
    let percentiles = |latencies: &Latencies, phase| {
        html! {
            @for (name, _, share) in PERCENTILES {
                td.right data-label=(name) {
                    @let latency = latencies.percentile(phase, share);
                    (latency.map_or_else(|| "–".into(), format::duration))
                }
            }
        }
    };
    html! {
        section.card {
            h2 { "Latency of completions by phase" }
            div.scroll tabindex="0" role="region" aria-label="Latency of completions by phase" {
                table.rows {
                    thead { tr {
                        th scope="col" { "Phase" } th.right scope="col" { "Measured" }
                        @for (name, ..) in PERCENTILES { th.right scope="col" { (name) } }
                    } }
                    tbody {
                        @for phase in Phase::ALL {
                            tr {
                                th scope="row" {
                                    @let here = (phase == view.phase).then_some("true");
                                    @let link = query.with("phase", phase.as_str());
                                    a href=(link) aria-current=[here] { (phase.as_str()) }
                                    @if here.is_some() { " " span.quiet.small { "(in the chart)" } }
                                }
                                td.right data-label="Measured" { (number(latencies.count(phase))) }
                                (percentiles(latencies, phase))
                            }
                        }
                        tr {
                            th scope="row" { "failed requests" }
                            td.right data-label="Measured" { (number(failed.count(Phase::Total))) }
                            (percentiles(failed, Phase::Total))
                        }
                    }
                }
            }
        }
    }
}
