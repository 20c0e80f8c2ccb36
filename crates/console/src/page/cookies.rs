//! The console's cookies. Over TLS their names begin with `__Host-`, so that the browser binds them to this host.

use http::header;
use store::Token;

use crate::page::{Console, ConsoleRequest, ConsoleResponse};

const SESSION_DAYS: u32 = 30;
const MESSAGE_SECONDS: u32 = 60;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Cookie {
    Session,
    /// The secret from which the CSRF token of visitors who are not signed in is derived.
    Anonymous,
    /// Identifies the challenge of a visitor whose password was correct.
    SecondFactor,
    /// A message that the next page shows once.
    Message,
    /// The last sort order of each table.
    Sort,
}

impl Cookie {
    fn name(self, secure: bool) -> String {
        let name = match self {
            Self::Session => "adriaticum_session",
            Self::Anonymous => "adriaticum_guest",
            Self::SecondFactor => "adriaticum_second_factor",
            Self::Message => "adriaticum_message",
            Self::Sort => "adriaticum_sort",
        };
        format!("{}{name}", if secure { "__Host-" } else { "" })
    }

    fn header(self, secure: bool, value: &str, max_age_seconds: u32) -> String {
        let name = self.name(secure);
        let secure = if secure { "; Secure" } else { "" };
        format!("{name}={value}; Path=/; Max-Age={max_age_seconds}; HttpOnly; SameSite=Lax{secure}")
    }
}

impl Console {
    pub(crate) fn cookie<'r>(&self, request: &'r ConsoleRequest, cookie: Cookie) -> Option<&'r str> {
        request.cookie(&cookie.name(self.is_secure()))
    }

    pub(crate) fn set_cookie(
        &self,
        response: ConsoleResponse,
        cookie: Cookie,
        value: &str,
        max_age_seconds: u32,
    ) -> ConsoleResponse {
        response.with_header(header::SET_COOKIE, &cookie.header(self.is_secure(), value, max_age_seconds))
    }

    pub(crate) fn clear_cookie(&self, response: ConsoleResponse, cookie: Cookie) -> ConsoleResponse {
        self.set_cookie(response, cookie, "", 0)
    }

    pub(crate) fn set_session_cookie(&self, response: ConsoleResponse, token: &Token) -> ConsoleResponse {
        self.set_cookie(response, Cookie::Session, token.reveal(), SESSION_DAYS * 86_400)
    }

    /// The page that the redirect leads to shows the message.
    pub(crate) fn redirect_with_message(&self, to: &str, message: &str) -> ConsoleResponse {
        let encoded: String = url::form_urlencoded::byte_serialize(message.as_bytes()).collect();
        self.set_cookie(ConsoleResponse::redirect(to), Cookie::Message, &encoded, MESSAGE_SECONDS)
    }

    pub(crate) fn message(&self, request: &ConsoleRequest) -> Option<String> {
        let encoded = self.cookie(request, Cookie::Message).filter(|encoded| !encoded.is_empty())?;
        let decoded = url::form_urlencoded::parse(encoded.as_bytes()).next()?;
        Some(decoded.0.into_owned())
    }
}
