//! The words of the store: ids, names, roles, viewers, scopes, limits, prices. Pure, without a database.

mod email;
mod id;
mod limit;
mod person_name;
mod price;
mod project;
mod scope;
mod token;
mod viewer;

pub use email::{Email, EmailError};
pub(crate) use id::Id;
pub use id::{AccountId, LinkId, SessionId};
pub use limit::{Budget, BudgetPeriod, BudgetUnit, Limit, LimitAmountError, LimitKind, LimitKindError};
pub use person_name::{PersonName, PersonNameError};
pub use price::{Currency, CurrencyError, TokenPrice, TokenPriceError};
pub(crate) use price::{PRICE_DECIMALS, decimal};
pub use project::{Project, ProjectError};
pub use scope::Scope;
pub use token::Token;
pub use viewer::{Account, Admin, Role, RoleError, Viewer};
