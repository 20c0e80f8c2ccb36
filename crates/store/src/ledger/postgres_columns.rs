//! Rows and sums as arrays, one per column, so that one statement writes many. Pure.

use std::time::Duration;

use chat::FinishReason;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::database::postgres::signed;
use crate::limits::spending::period_starts;
use crate::usage::rollup::{Entry, Figures, Measured};
use crate::values::Project;

#[derive(Default)]
pub(crate) struct Columns<'a> {
    ids: Vec<Uuid>,
    keys: Vec<String>,
    statuses: Vec<i16>,
    codes: Vec<Option<&'a str>>,
    tokens: [Vec<Option<i64>>; 3],
    times: [Vec<Option<i64>>; 3],
    totals: Vec<i64>,
    scores: Vec<Option<f32>>,
    scorers: Vec<Option<i32>>,
    sources: Vec<Option<i32>>,
    owners: Vec<Option<String>>,
    projects: Vec<Option<&'a str>>,
    runtimes: Vec<Option<&'a str>>,
    finish_reasons: Vec<Option<&'static str>>,
    /// The starts of each row's day and month.
    periods: [Vec<i64>; 2],
}

impl<'a> Columns<'a> {
    pub(crate) fn from_entries(rows: impl Iterator<Item = &'a Entry>) -> Self {
        let mut columns = Self::default();
        for entry in rows {
            let (usage, timings, grounding) = (&entry.usage, &entry.timings, entry.grounding);
            columns.ids.push(Uuid::from_bytes(entry.request_id.to_bytes()));
            columns.keys.push(entry.key.to_string());
            columns.statuses.push(entry.outcome.status as i16);
            columns.codes.push(entry.outcome.code);
            for (column, figure) in columns.tokens.iter_mut().zip([usage.prompt, usage.completion, usage.total]) {
                column.push(figure.map(i64::from));
            }
            for (column, time) in columns.times.iter_mut().zip([timings.queue, timings.search, timings.inference]) {
                column.push(time.map(micros));
            }
            columns.totals.push(micros(timings.total));
            columns.scores.push(grounding.map(|grounding| grounding.score));
            columns.scorers.push(grounding.map(|grounding| grounding.scorer.into()));
            columns.sources.push(grounding.and_then(|grounding| grounding.sources).map(i32::from));
            columns.owners.push(entry.owner.map(|owner| owner.to_string()));
            columns.projects.push(entry.project.as_ref().map(Project::as_str));
            columns.runtimes.push(entry.inference.runtime.as_deref());
            columns.finish_reasons.push(entry.inference.finish_reason.map(FinishReason::as_str));
            let starts = period_starts(entry.request_id.timestamp());
            columns.periods.iter_mut().zip(starts).for_each(|(column, start)| column.push(signed(start.as_millis())));
        }
        columns
    }

    pub(crate) fn parameters<'b>(
        &'b self,
        commit: &'b i64,
        slot: &'b i64,
        reserved: &'b Vec<Uuid>,
    ) -> [&'b (dyn ToSql + Sync); 23] {
        let Self { tokens: [prompt, completion, total], times: [queue, search, inference], .. } = self;
        let [days, months] = &self.periods;
        [
            commit, &self.ids, &self.keys, &self.statuses, &self.codes, prompt, completion, total, queue, search,
            inference, &self.totals, &self.scores, &self.scorers, &self.sources, &self.owners, days, months, slot,
            reserved, &self.runtimes, &self.finish_reasons, &self.projects,
        ]
    }
}

#[derive(Default)]
pub(crate) struct FigureColumns([Vec<i64>; 7]);

impl FigureColumns {
    pub(crate) fn push(&mut self, figures: &Figures) {
        let Figures { requests, prompt, completion, total, last_at: _ } = *figures;
        let pairs = [prompt, completion, total].map(|Measured { sum, count }| [sum, count]);
        let values = [requests].into_iter().chain(pairs.into_iter().flatten());
        self.0.iter_mut().zip(values).for_each(|(column, value)| column.push(value as i64));
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = &(dyn ToSql + Sync)> {
        self.0.iter().map(|column| column as &(dyn ToSql + Sync))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Whether the row's times fit their columns.
pub(crate) fn fits(entry: &Entry) -> bool {
    let times = [entry.timings.queue, entry.timings.search, entry.timings.inference, Some(entry.timings.total)];
    times.into_iter().flatten().all(|time| i64::try_from(time.as_micros()).is_ok())
}
