//! Reads and changes prices. Every report reads them again, because there are few and costs use current prices.

use std::collections::BTreeMap;

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::{Connection, Row, params};
use crate::usage::cost::{Price, PriceList};
use crate::values::{Admin, Currency, Project, TokenPrice, Viewer};
use crate::{Prices, StoreError};

const MAX_PRICES: u64 = 1_000;

#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// All prices are in one currency.
    #[error("prices are in {0}; remove them all to use another currency")]
    OtherCurrency(Currency),
    #[error("the first price needs a currency, such as EUR")]
    NoCurrency,
    #[error("there are already {MAX_PRICES} prices")]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Prices<'_> {
    pub async fn list(self, _viewer: &Viewer) -> Result<PriceList, StoreError> {
        read_prices(&mut self.connection().await?).await
    }

    /// Sets the price of a project, or the default price. The currency may be omitted once there is a price.
    pub async fn set(
        self,
        admin: Admin<'_>,
        project: Option<&Project>,
        price: Price,
        currency: Option<Currency>,
    ) -> Result<Currency, PriceError> {
        self.change(admin.0, async |transaction| {
            let currency = match (read_currency(transaction).await?, currency) {
                (Some(kept), Some(other)) if kept != other => return Err(PriceError::OtherCurrency(kept)),
                (Some(kept), _) => kept,
                (None, Some(first)) => first,
                (None, None) => return Err(PriceError::NoCurrency),
            };
            let count = "SELECT count(*) FROM prices WHERE project <> $1";
            if transaction.query_value::<u64>(count, params![column(project)]).await? >= MAX_PRICES {
                return Err(PriceError::TooMany);
            }
            let set = "INSERT INTO prices (project, prompt, completion, currency) VALUES ($1, $2, $3, $4)
                ON CONFLICT (project) DO UPDATE SET prompt = excluded.prompt, completion = excluded.completion";
            let (prompt, completion) = (price.prompt.micros(), price.completion.micros());
            transaction.execute(set, params![column(project), prompt, completion, currency.as_str()]).await?;
            let action = AuditAction::SetPrice { prompt: price.prompt, completion: price.completion, currency };
            transaction.audit(admin.0, action, &AuditSubject::project(project)).await?;
            Ok(currency)
        })
        .await
    }

    /// `false` if there is none.
    pub async fn remove(self, admin: Admin<'_>, project: Option<&Project>) -> Result<bool, PriceError> {
        self.change(admin.0, async |transaction| {
            let remove = "DELETE FROM prices WHERE project = $1";
            let is_removed = transaction.execute(remove, params![column(project)]).await? == 1;
            if is_removed {
                transaction.audit(admin.0, AuditAction::RemovedPrice, &AuditSubject::project(project)).await?;
            }
            Ok(is_removed)
        })
        .await
    }
}

/// The default price is stored under the empty label, which no project can have.
fn column(project: Option<&Project>) -> &str {
    project.map_or("", Project::as_str)
}

async fn read_currency(connection: &mut Connection<'_>) -> Result<Option<Currency>, StoreError> {
    let read = "SELECT currency FROM prices LIMIT 1";
    connection.query_optional(read, &[], currency_of(0)).await
}

pub(crate) const SELECT_PRICES: &str = "SELECT project, prompt, completion, currency FROM prices";

async fn read_prices(connection: &mut Connection<'_>) -> Result<PriceList, StoreError> {
    Ok(price_list(connection.query(SELECT_PRICES, &[], price_row).await?))
}

pub(crate) type PriceRow = (String, Price, Currency);

/// Reads the columns of `SELECT_PRICES`.
pub(crate) fn price_row(row: &Row<'_>) -> Result<PriceRow, StoreError> {
    let price =
        Price { prompt: TokenPrice::from_micros(row.get(1)?), completion: TokenPrice::from_micros(row.get(2)?) };
    Ok((row.get(0)?, price, currency_of(3)(row)?))
}

pub(crate) fn price_list(rows: Vec<PriceRow>) -> PriceList {
    let currency = rows.first().map(|(.., currency)| *currency);
    let mut prices: BTreeMap<String, Price> = rows.into_iter().map(|(label, price, _)| (label, price)).collect();
    let default = prices.remove("");
    let projects = prices.into_iter().map(|(label, price)| (Project::stored(&label), price)).collect();
    PriceList { currency, default, projects }
}

fn currency_of(column: usize) -> impl Fn(&Row<'_>) -> Result<Currency, StoreError> {
    move |row| row.get::<String>(column)?.parse().map_err(|_| StoreError::Corrupt("currency"))
}
