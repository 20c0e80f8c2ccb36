//! A service with its console, and people who use it.

use testbed::{Reply, Runtime, Service};

use crate::ADRIATICUM;
use crate::browser::Page;

/// Everybody's password.
pub(crate) const PASSWORD: &str = "a few good words";

/// A service in front of a runtime that answers at once.
pub(crate) struct Site {
    pub(crate) service: Service,
    _runtimes: Vec<Runtime>,
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::before(vec![Runtime::that(Reply::Echoes)])
    }

    /// A service in front of these runtimes.
    pub(crate) fn before(runtimes: Vec<Runtime>) -> Self {
        Self { service: ADRIATICUM.setup_with(&runtimes.iter().collect::<Vec<_>>()).start(), _runtimes: runtimes }
    }

    /// One more replica over the same database.
    pub(crate) fn replica(&self) -> Self {
        let runtime = Runtime::that(Reply::Echoes);
        Self { service: ADRIATICUM.setup_with(&[&runtime]).beside(&self.service).start(), _runtimes: vec![runtime] }
    }

    /// Where the console is, as the service says.
    pub(crate) fn origin(&self) -> String {
        self.told("  Console   ")
    }

    /// The link for the first account, as the service says.
    pub(crate) fn set_up_link(&self) -> String {
        let link = self.told("  Set up    ");
        link.strip_prefix(&self.origin()).unwrap().to_owned()
    }

    fn told(&self, what: &str) -> String {
        let line = self.service.greeting().lines().find_map(|line| line.strip_prefix(what));
        line.and_then(|line| line.split_whitespace().next()).expect(what).to_owned()
    }

    /// A new browser.
    pub(crate) fn browser(&self) -> Page {
        Page::open(&self.origin())
    }

    /// Somebody with a new account, signed in.
    pub(crate) fn person(&self, name: &str, role: &str) -> Page {
        let link = self.service.output(&["accounts", "invite", name, "--role", role]);
        let path = link.trim().split_once("/welcome/").expect("a link").1.to_owned();
        let mut page = self.browser();
        page.go(&format!("/welcome/{path}"));
        Self::join(&mut page, name);
        page
    }

    /// Fills in the form for a new account.
    pub(crate) fn join(page: &mut Page, name: &str) {
        page.fill("[name=name]", name);
        page.fill("[name=email]", &Self::email(name));
        page.fill("[name=password]", PASSWORD);
        page.fill("[name=again]", PASSWORD);
        page.click("main button[type=submit]");
        page.assert_says("You are signed in.");
    }

    pub(crate) fn email(name: &str) -> String {
        format!("{}@example.com", name.to_lowercase())
    }

    /// Signs somebody in, who has an account, in another browser.
    pub(crate) fn sign_in(&self, name: &str) -> Page {
        let mut page = self.browser();
        page.go("/sign-in");
        page.fill("[name=email]", &Self::email(name));
        page.fill("[name=password]", PASSWORD);
        page.click("main button[type=submit]");
        page
    }

    /// Makes a key on the page, and gives it.
    pub(crate) fn make_key(page: &mut Page, name: &str) -> String {
        page.go("/keys");
        page.fill("#create [name=name]", name);
        page.click("#create button[type=submit]");
        page.eval("document.getElementById('key').textContent").as_str().expect("the key is shown").to_owned()
    }
}
