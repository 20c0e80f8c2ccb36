//! Tables of metrics as OpenMetrics families: counters, gauges and histograms.

use std::fmt;

use histogram::Snapshot;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// One metric of a `T`. The encoder appends `_total` to the name of a counter.
pub(crate) struct Metric<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: fn(&T) -> f64,
}

pub(crate) const fn gauge<T>(name: &'static str, help: &'static str, read: fn(&T) -> f64) -> Metric<T> {
    Metric { name, help, kind: MetricType::Gauge, read }
}

pub(crate) const fn counter<T>(name: &'static str, help: &'static str, read: fn(&T) -> f64) -> Metric<T> {
    Metric { name, help, kind: MetricType::Counter, read }
}

/// Writes every metric of a table for each item. NaN is left out.
pub(crate) fn table<'a, T: 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    table: &[Metric<T>],
    each: impl Iterator<Item = (Labels<'a>, &'a T)> + Clone,
) -> fmt::Result {
    for metric in table {
        let rows = each.clone().map(|(labels, item)| (labels, (metric.read)(item)));
        family(encoder, metric.name, metric.help, metric.kind, rows.filter(|(_, value)| !value.is_nan()))?;
    }
    Ok(())
}

/// A family whose rows differ in one label.
pub(crate) fn by_label<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    label: &str,
    rows: impl IntoIterator<Item = (&'a str, f64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    rows.into_iter().try_for_each(|(value, row)| write(&mut metric.encode_family(&[(label, value)])?, kind, row))
}

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

/// `unit` is the number of the histogram's units in one exported unit.
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

fn write(metric: &mut MetricEncoder<'_>, kind: MetricType, value: f64) -> fmt::Result {
    let whole = (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64);
    match (kind, whole) {
        (MetricType::Counter, Some(whole)) => metric.encode_counter::<NoLabelSet, _, u64>(&whole.unsigned_abs(), None),
        (MetricType::Counter, None) => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (_, Some(whole)) => metric.encode_gauge(&whole),
        (_, None) => metric.encode_gauge(&value),
    }
}
