//! `usage --by`: one line for each key, person, project or day, and the total; with costs if there are prices.

use std::io::Write;

use format::{Group, GroupRow, money, number, rfc3339_seconds, write_csv};
use store::{Cost, Currency, UsageReport};

use crate::error::CliError;
use crate::table::Table;
use crate::usage::measured;

pub(crate) fn write_as_csv(out: &mut impl Write, report: &UsageReport, group: Group) -> Result<(), CliError> {
    let rows = GroupRow::all(report, group);
    let columns = GroupRow::columns(group, report.currency.is_some());
    Ok(write_csv(out, Some(&columns), rows.iter().map(|row| row.cells(report.currency)))?)
}

pub(crate) fn write_as_table(out: &mut impl Write, report: &UsageReport, group: Group) -> Result<(), CliError> {
    writeln!(out, "From {} to {}\n", rfc3339_seconds(report.since), rfc3339_seconds(report.until))?;
    let title = group.name().to_uppercase();
    let mut headings =
        vec![title.as_str(), ">REQUESTS", ">FAILED", ">PROMPT TOKENS", ">COMPLETION TOKENS", ">TOTAL TOKENS"];
    headings.extend(report.currency.map(|_| ">COST"));
    let mut table = Table::new(&headings);
    for row in GroupRow::all(report, group) {
        let figures = &row.figures;
        let of = |figure| measured(figure, figures.requests);
        let (requests, failed) = (number(figures.requests), number(row.failed()));
        let cells = [row.title(), requests, failed, of(figures.prompt), of(figures.completion), of(figures.total)];
        table.row(cells.into_iter().chain(report.currency.map(|currency| priced(row.cost, currency))));
    }
    write!(out, "{table}")?;
    if let Some(cost) = report.cost {
        let (counted, all) = (number(cost.requests), number(report.totals.requests));
        writeln!(
            out,
            "\nCosts are computed from today's prices, not billed: {counted} of {all} requests have measured"
        )?;
        writeln!(out, "tokens and a price.")?;
    }
    Ok(())
}

fn priced(cost: Option<Cost>, currency: Currency) -> String {
    cost.map_or_else(|| "–".into(), |cost| money(cost, currency))
}
