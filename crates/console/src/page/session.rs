//! The sender of a request. Handlers that require a session take a `SignedIn`, which only a valid session cookie yields.
//! Public pages take an `Anonymous`.

use std::net::IpAddr;

use bytes::Bytes;
use maud::{Markup, html};
use store::{Account, Admin, Session, SignInMethod, Store, StoreError, Token, Viewer};

use crate::page::cookies::Cookie;
use crate::page::{Area, Console, ConsoleError, ConsoleRequest, ConsoleResponse, ConsoleResult, Form, heading};
use crate::page::{form, layout};

/// The purpose in the derivation of CSRF tokens.
const CSRF_PURPOSE: &str = "forms";
const ANONYMOUS_COOKIE_SECONDS: u32 = 86_400;

/// The sender of a form: a browser with a secret cookie, from which the tokens of its forms are derived.
pub(crate) trait FormSender {
    fn console(&self) -> &Console;

    fn secret(&self) -> &Token;

    fn csrf_token(&self) -> String {
        self.secret().derive(CSRF_PURPOSE)
    }

    async fn form(&self, request: &mut ConsoleRequest) -> ConsoleResult<Form> {
        Form::parse(request, &self.console().settings.origin, &self.csrf_token()).await
    }

    async fn json(&self, request: &mut ConsoleRequest) -> ConsoleResult<Bytes> {
        form::read_json(request, &self.console().settings.origin, &self.csrf_token()).await
    }
}

pub(crate) struct SignedIn<'a> {
    pub(crate) console: &'a Console,
    pub(crate) session: Session,
    pub(crate) message: Option<String>,
    pub(crate) client: IpAddr,
    secret: Token,
}

impl<'a> SignedIn<'a> {
    pub(crate) async fn from_request(console: &'a Console, request: &ConsoleRequest) -> ConsoleResult<Self> {
        let secret = console.cookie(request, Cookie::Session).and_then(Token::parse).ok_or(ConsoleError::SignedOut)?;
        let session = console.store.sessions().find(&secret, &request.client.to_string()).await?;
        let is_valid = |session: &Session| console.settings.passwords || session.method == SignInMethod::Provider;
        let session = session.filter(is_valid).ok_or(ConsoleError::SignedOut)?;
        Ok(Self { console, session, message: console.message(request), client: request.client, secret })
    }

    pub(crate) fn store(&self) -> &'a Store {
        &self.console.store
    }

    /// The own account, which everyone but the operator has.
    pub(crate) fn account(&self) -> ConsoleResult<&Account> {
        self.viewer().account().ok_or(ConsoleError::SignedOut)
    }

    pub(crate) fn viewer(&self) -> &Viewer {
        &self.session.viewer
    }

    pub(crate) fn admin(&self) -> ConsoleResult<Admin<'_>> {
        self.viewer().admin().ok_or(ConsoleError::NotAllowed)
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.viewer().admin().is_some()
    }

    /// The title is also the heading, beside which the actions are.
    pub(crate) fn page(&self, area: Area, title: &str, actions: Markup, content: Markup) -> ConsoleResponse {
        self.bare_page(area, title, html! { (heading(title, actions)) (content) })
    }

    /// For content that has its own heading.
    pub(crate) fn bare_page(&self, area: Area, title: &str, content: Markup) -> ConsoleResponse {
        ConsoleResponse::page(layout::page(self, area, title, content))
    }

    pub(crate) fn redirect_with_message(&self, to: &str, message: &str) -> ConsoleResult {
        Ok(self.console.redirect_with_message(to, message))
    }
}

impl FormSender for SignedIn<'_> {
    fn console(&self) -> &Console {
        self.console
    }

    fn secret(&self) -> &Token {
        &self.secret
    }
}

/// A visitor who is not signed in. Public forms need a CSRF token too, so each visitor gets a secret.
pub(crate) struct Anonymous<'a> {
    pub(crate) console: &'a Console,
    pub(crate) message: Option<String>,
    secret: Token,
    is_new: bool,
}

impl<'a> Anonymous<'a> {
    pub(crate) fn from_request(console: &'a Console, request: &ConsoleRequest) -> ConsoleResult<Self> {
        let message = console.message(request);
        let known = console.cookie(request, Cookie::Anonymous).and_then(Token::parse);
        let is_new = known.is_none();
        let secret = match known {
            Some(secret) => secret,
            None => Token::generate().map_err(StoreError::from)?,
        };
        Ok(Self { console, message, secret, is_new })
    }

    /// With the cookie that the page's form needs.
    pub(crate) fn page(&self, title: &str, content: Markup) -> ConsoleResponse {
        self.with_cookie(ConsoleResponse::page(layout::anonymous_page(self, title, content)))
    }

    /// With the cookie, if the browser does not have it yet.
    pub(crate) fn with_cookie(&self, response: ConsoleResponse) -> ConsoleResponse {
        match self.is_new {
            true => {
                self.console.set_cookie(response, Cookie::Anonymous, self.secret.reveal(), ANONYMOUS_COOKIE_SECONDS)
            }
            false => response,
        }
    }
}

impl FormSender for Anonymous<'_> {
    fn console(&self) -> &Console {
        self.console
    }

    fn secret(&self) -> &Token {
        &self.secret
    }
}
