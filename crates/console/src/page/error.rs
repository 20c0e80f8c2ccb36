//! Why a request fails: its status, and the sentence on the page.

use http::StatusCode;
use store::StoreError;

use crate::page::response::ConsoleResponse;

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
    #[error("This change needs your password or passkey again.")]
    NotConfirmed,
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

impl From<getrandom::Error> for ConsoleError {
    fn from(error: getrandom::Error) -> Self {
        StoreError::from(error).into()
    }
}

impl ConsoleError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Forged | Self::NotAllowed | Self::SetByAdmin | Self::NotConfirmed => StatusCode::FORBIDDEN,
            Self::Unreadable => StatusCode::BAD_REQUEST,
            Self::SignedOut => StatusCode::UNAUTHORIZED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Busy | Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn heading(&self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Forged => "Form rejected",
            Self::Unreadable => "Bad request",
            Self::NotAllowed | Self::SetByAdmin | Self::NotConfirmed => "Not allowed",
            Self::SignedOut => "Signed out",
            Self::Internal => "Internal error",
            Self::Busy | Self::Store(_) => "Service unavailable",
        }
    }
}
