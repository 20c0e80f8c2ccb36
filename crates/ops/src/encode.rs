//! How figures become text: families of counters, gauges and histograms, for the encoder.

use std::fmt;

use histogram::Snapshot;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// What tells the figures of one family apart.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// One figure of something: its name, what it means, and how it is got. The name of a counter goes out with `_total`.
pub(crate) struct Figure<Of> {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricType,
    pub(crate) of: fn(&Of) -> f64,
}

/// Writes each figure of a table for each of those that it is about. What is no number is left out.
pub(crate) fn table<'a, Of: 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    table: &[Figure<Of>],
    each: impl Iterator<Item = (Labels<'a>, &'a Of)> + Clone,
) -> fmt::Result {
    for figure in table {
        let rows = each.clone().map(|(labels, of)| (labels, (figure.of)(of)));
        family(encoder, figure.name, figure.help, figure.kind, rows.filter(|(_, value)| !value.is_nan()))?;
    }
    Ok(())
}

/// Writes a family of counters or gauges.
pub(crate) fn family<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    rows: impl IntoIterator<Item = (Labels<'a>, f64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in rows {
        match labels {
            [] => write(&mut metric, kind, value)?,
            labels => write(&mut metric.encode_family(&labels)?, kind, value)?,
        }
    }
    Ok(())
}

/// Writes a family of histograms; `unit` is how many of their values make up one of the unit that goes out.
pub(crate) fn histograms<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: f64,
    rows: impl IntoIterator<Item = (Labels<'a>, &'a Snapshot)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, counted) in rows {
        let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64 / unit);
        let buckets: Vec<_> = counted.buckets().map(|(upper, count)| (bound(upper), count)).collect();
        let write = |metric: &mut MetricEncoder<'_>| {
            metric.encode_histogram::<NoLabelSet>(counted.sum() as f64 / unit, counted.count(), &buckets, None)
        };
        match labels {
            [] => write(&mut metric)?,
            labels => write(&mut metric.encode_family(&labels)?)?,
        }
    }
    Ok(())
}

/// Writes a whole number as one.
fn write(metric: &mut MetricEncoder<'_>, kind: MetricType, value: f64) -> fmt::Result {
    let whole = (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64);
    match (kind, whole) {
        (MetricType::Counter, Some(whole)) => metric.encode_counter::<NoLabelSet, _, u64>(&whole.unsigned_abs(), None),
        (MetricType::Counter, None) => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (_, Some(whole)) => metric.encode_gauge(&whole),
        (_, None) => metric.encode_gauge(&value),
    }
}
