//! Cookies, and who is behind them. A `Room` is the console for somebody who is signed in; a `Guest` for everybody else.

use http::header;
use store::{Admin, Session, Token, Viewer};

use crate::Console;
use crate::form::Form;
use crate::reply::{Problem, Reply};
use crate::visit::Visit;

const SESSION_DAYS: u32 = 30;
/// What forms' tokens are derived for.
const FORMS: &str = "forms";

/// The console's cookies. Over TLS the browser itself binds them to this host.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cookie {
    /// The secret of a session.
    Session,
    /// The secret behind the forms of those who are not signed in.
    Guest,
    /// What is to be said on the next page.
    Message,
}

impl Cookie {
    fn name(self, secure: bool) -> String {
        let name = match self {
            Self::Session => "adriaticum_session",
            Self::Guest => "adriaticum_guest",
            Self::Message => "adriaticum_message",
        };
        format!("{}{name}", if secure { "__Host-" } else { "" })
    }

    /// The header that sets it for so many seconds.
    fn set(self, secure: bool, value: &str, seconds: u32) -> String {
        let secure_too = if secure { "; Secure" } else { "" };
        let name = self.name(secure);
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure_too}")
    }
}

impl Console {
    pub(crate) fn cookie<'v>(&self, visit: &'v Visit, cookie: Cookie) -> Option<&'v str> {
        visit.cookie(&cookie.name(self.is_secure()))
    }

    pub(crate) fn set_cookie(&self, reply: Reply, cookie: Cookie, value: &str, seconds: u32) -> Reply {
        reply.with(header::SET_COOKIE, &cookie.set(self.is_secure(), value, seconds))
    }

    /// Lets a browser in with a session's secret.
    pub(crate) fn let_in(&self, reply: Reply, token: &Token) -> Reply {
        self.set_cookie(reply, Cookie::Session, token.reveal(), SESSION_DAYS * 86_400)
    }

    /// Goes on to another page, which will say what has happened.
    pub(crate) fn redirect_saying(&self, to: &str, message: &str) -> Reply {
        let encoded: String = url::form_urlencoded::byte_serialize(message.as_bytes()).collect();
        self.set_cookie(Reply::redirect(to), Cookie::Message, &encoded, 60)
    }

    /// What is to be said on this page, from the page before.
    pub(crate) fn message(&self, visit: &Visit) -> Option<String> {
        let encoded = self.cookie(visit, Cookie::Message).filter(|encoded| !encoded.is_empty())?;
        let decoded = url::form_urlencoded::parse(encoded.as_bytes()).next()?;
        Some(decoded.0.into_owned())
    }
}

/// The console for somebody who is signed in.
pub(crate) struct Room<'a> {
    pub(crate) console: &'a Console,
    pub(crate) session: Session,
    pub(crate) message: Option<String>,
    secret: Token,
}

impl<'a> Room<'a> {
    /// The room of whoever is behind a visit's cookie.
    pub(crate) async fn of(console: &'a Console, visit: &Visit) -> Result<Self, Problem> {
        let secret = console.cookie(visit, Cookie::Session).and_then(Token::parse).ok_or(Problem::SignedOut)?;
        let session = console.store.session(&secret, &visit.visitor.to_string()).await?.ok_or(Problem::SignedOut)?;
        Ok(Self { console, session, message: console.message(visit), secret })
    }

    pub(crate) fn viewer(&self) -> &Viewer {
        &self.session.viewer
    }

    /// For what only administrators may do.
    pub(crate) fn admin(&self) -> Result<Admin<'_>, Problem> {
        self.viewer().admin().ok_or(Problem::NotAllowed)
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.viewer().admin().is_some()
    }

    /// The token that every form on this session's pages carries.
    pub(crate) fn token(&self) -> String {
        self.secret.derive(FORMS)
    }

    pub(crate) async fn form(&self, visit: &mut Visit) -> Result<Form, Problem> {
        Form::read(visit, &self.console.settings.origin, &self.token()).await
    }

    pub(crate) async fn json(&self, visit: &mut Visit) -> Result<bytes::Bytes, Problem> {
        Form::read_json(visit, &self.console.settings.origin, &self.token()).await
    }

    pub(crate) fn redirect_saying(&self, to: &str, message: &str) -> Reply {
        self.console.redirect_saying(to, message)
    }
}

/// The console for somebody who is not signed in.
pub(crate) struct Guest<'a> {
    pub(crate) console: &'a Console,
    pub(crate) message: Option<String>,
    secret: Token,
    is_new: bool,
}

impl<'a> Guest<'a> {
    pub(crate) fn of(console: &'a Console, visit: &Visit) -> Result<Self, Problem> {
        let message = console.message(visit);
        let known = console.cookie(visit, Cookie::Guest).and_then(Token::parse);
        let is_new = known.is_none();
        let secret = match known {
            Some(secret) => secret,
            None => Token::generate().map_err(store::StoreError::from)?,
        };
        Ok(Self { console, message, secret, is_new })
    }

    pub(crate) fn token(&self) -> String {
        self.secret.derive(FORMS)
    }

    pub(crate) async fn form(&self, visit: &mut Visit) -> Result<Form, Problem> {
        Form::read(visit, &self.console.settings.origin, &self.token()).await
    }

    /// A page with a form on it, and the cookie that the form needs.
    pub(crate) fn page(&self, reply: Reply) -> Reply {
        match self.is_new {
            true => self.console.set_cookie(reply, Cookie::Guest, self.secret.reveal(), 86_400),
            false => reply,
        }
    }
}
