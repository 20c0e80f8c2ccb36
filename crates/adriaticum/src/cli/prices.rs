//! `adriaticum prices`.

use clap::{Args, Subcommand};
use store::{Currency, Project, TokenPrice};

#[derive(Subcommand)]
pub(crate) enum PricesCommand {
    /// Lists all prices.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sets a price, or changes it.
    Set {
        #[command(flatten)]
        of: PriceOf,
        /// What a million prompt tokens cost, such as 0.20.
        #[arg(long, value_name = "AMOUNT")]
        prompt: TokenPrice,
        /// What a million completion tokens cost.
        #[arg(long, value_name = "AMOUNT")]
        completion: TokenPrice,
        /// The currency of all prices, such as EUR; needed for the first one.
        #[arg(long, value_name = "CODE")]
        currency: Option<Currency>,
    },
    /// Removes a price.
    Remove {
        #[command(flatten)]
        of: PriceOf,
    },
}

/// What a price is for.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PriceOf {
    /// For the keys of a project.
    #[arg(long, value_name = "NAME", value_parser = Project::parse)]
    pub(crate) project: Option<Project>,
    /// For everything without a price of its own.
    #[arg(long)]
    default: bool,
}
