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
    /// Sets or changes a price.
    Set {
        #[command(flatten)]
        of: PriceOf,
        /// Price of a million prompt tokens, such as 0.20.
        #[arg(long, value_name = "AMOUNT")]
        prompt: TokenPrice,
        /// Price of a million completion tokens.
        #[arg(long, value_name = "AMOUNT")]
        completion: TokenPrice,
        /// The currency of all prices, such as EUR; required for the first price.
        #[arg(long, value_name = "CODE")]
        currency: Option<Currency>,
    },
    /// Removes a price.
    Remove {
        #[command(flatten)]
        of: PriceOf,
    },
}

/// The subject of a price.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PriceOf {
    /// The price for the keys of a project.
    #[arg(long, value_name = "NAME", value_parser = Project::parse)]
    pub(crate) project: Option<Project>,
    /// The price for everything without a project price.
    #[arg(long)]
    default: bool,
}
