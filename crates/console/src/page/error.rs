//! Why a request fails: its status, and the sentence on the page.

use std::fmt::Display;
use std::str::FromStr;

use http::StatusCode;
use store::{AccountError, PriceError, StoreError};

use crate::credentials::TooManyAttempts;
use crate::page::{ConsoleResponse, Refusal};

pub(crate) type ConsoleResult<T = ConsoleResponse> = Result<T, ConsoleError>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsoleError {
    /// Also for pages that the viewer may not see.
    #[error("This page does not exist, or you do not have access to it.")]
    NotFound,
    /// Posted from another site, or from a page that is too old.
    #[error("This form has expired, or did not come from this console. Reload the page and try again.")]
    Forged,
    #[error("A form field is missing or invalid. Nothing was changed. Go back and try again.")]
    Unreadable,
    /// The memory for request bodies is used up.
    #[error("The console is busy. Nothing was changed. Please try again in a few seconds.")]
    Busy,
    #[error("Only administrators can do this.")]
    NotAllowed,
    #[error("An administrator has restricted this key, and only an administrator can lift that. Nothing was changed.")]
    SetByAdmin,
    /// An administrator's own account is changed on its page only.
    #[error("Change your own account on its page. Nothing was changed.")]
    OwnAccount,
    #[error("This change needs your password or passkey again.")]
    NotConfirmed,
    /// A field is invalid, or the change contradicts the state of an account. `routes` shows the page of the form again.
    #[error("{0} Nothing was changed.")]
    Refused(#[from] Refusal),
    #[error("Please sign in.")]
    SignedOut,
    /// A bug, or the system has no random numbers.
    #[error("Something went wrong. The error was logged.")]
    Internal,
    #[error("The database is unavailable. Nothing was changed. Please try again in a few seconds.")]
    Store(#[source] StoreError),
}

impl From<StoreError> for ConsoleError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SessionEnded => Self::SignedOut,
            StoreError::NotConfirmed => Self::NotConfirmed,
            error => Self::Store(error),
        }
    }
}

impl From<AccountError> for ConsoleError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::NoSuchAccount => Self::NotFound,
            AccountError::NotAdmin => Self::NotAllowed,
            AccountError::SetByAdmin => Self::SetByAdmin,
            AccountError::OwnAccount => Self::OwnAccount,
            AccountError::Store(error) => error.into(),
            error => Refusal::new(StatusCode::CONFLICT, sentence(&error)).into(),
        }
    }
}

impl From<PriceError> for ConsoleError {
    fn from(error: PriceError) -> Self {
        match error {
            PriceError::Store(error) => error.into(),
            error => Refusal::new(StatusCode::CONFLICT, sentence(&error)).into(),
        }
    }
}

impl From<TooManyAttempts> for ConsoleError {
    fn from(error: TooManyAttempts) -> Self {
        Refusal::from(error).into()
    }
}

impl From<getrandom::Error> for ConsoleError {
    fn from(error: getrandom::Error) -> Self {
        StoreError::from(error).into()
    }
}

impl ConsoleError {
    pub(crate) fn status(&self) -> StatusCode {
        self.status_and_heading().0
    }

    pub(crate) fn heading(&self) -> &'static str {
        self.status_and_heading().1
    }

    fn status_and_heading(&self) -> (StatusCode, &'static str) {
        match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "Not found"),
            Self::Forged => (StatusCode::FORBIDDEN, "Form rejected"),
            Self::Unreadable => (StatusCode::BAD_REQUEST, "Bad request"),
            Self::NotAllowed | Self::SetByAdmin | Self::OwnAccount | Self::NotConfirmed => {
                (StatusCode::FORBIDDEN, "Not allowed")
            }
            Self::Refused(refusal) => (refusal.status, "Not possible"),
            Self::SignedOut => (StatusCode::UNAUTHORIZED, "Signed out"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "Internal error"),
            Self::Busy | Self::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "Service unavailable"),
        }
    }
}

/// What a change refers to must exist.
pub(crate) fn found(is_found: bool) -> ConsoleResult<()> {
    if is_found { Ok(()) } else { Err(ConsoleError::NotFound) }
}

/// An id in a path. There is no page for a malformed one.
pub(crate) fn parse_id<Id: FromStr>(text: &str) -> ConsoleResult<Id> {
    text.parse().map_err(|_| ConsoleError::NotFound)
}

/// An error message as a full sentence.
pub(crate) fn sentence(error: &impl Display) -> String {
    let mut sentence = error.to_string();
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    format!("{sentence}.")
}
