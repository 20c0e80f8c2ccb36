//! A service with its console, and its users.

use testbed::{Behaviour, FakeRuntime, Service};

use crate::ADRIATICUM;
use crate::browser::Page;

/// The password of every account.
pub(crate) const PASSWORD: &str = "a few good words";

/// A service with its console, in front of fake runtimes.
pub(crate) struct Console {
    pub(crate) service: Service,
    _runtimes: Vec<FakeRuntime>,
}

impl Console {
    pub(crate) fn start() -> Self {
        Self::with_runtimes(vec![FakeRuntime::start(Behaviour::Echo)])
    }

    pub(crate) fn with_runtimes(runtimes: Vec<FakeRuntime>) -> Self {
        Self { service: ADRIATICUM.service_with(&runtimes.iter().collect::<Vec<_>>()).start(), _runtimes: runtimes }
    }

    pub(crate) fn with_service(service: Service) -> Self {
        Self { service, _runtimes: Vec::new() }
    }

    /// A replica that shares the database.
    pub(crate) fn replica(&self) -> Self {
        let runtime = FakeRuntime::start(Behaviour::Echo);
        Self {
            service: ADRIATICUM.service_with(&[&runtime]).replica_of(&self.service).start(),
            _runtimes: vec![runtime],
        }
    }

    pub(crate) fn origin(&self) -> String {
        self.service.banner_value("Console").unwrap()
    }

    /// The path of the link for the first account.
    pub(crate) fn setup_link(&self) -> String {
        let link = self.service.set_up_link();
        link.strip_prefix(&self.origin()).unwrap().to_owned()
    }

    pub(crate) fn browser(&self) -> Page {
        Page::open(&self.origin())
    }

    /// A new account, signed in in a separate browser.
    pub(crate) fn person(&self, name: &str, role: &str) -> Page {
        let link = self.service.run_ok(&["accounts", "invite", name, "--role", role]);
        let path = link.trim().split_once("/welcome/").expect("a link").1.to_owned();
        let mut page = self.browser();
        page.go(&format!("/welcome/{path}"));
        Self::join(&mut page, name);
        page
    }

    /// Submits the form for a new account.
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

    /// Signs in to an account in another browser.
    pub(crate) fn sign_in(&self, name: &str) -> Page {
        let mut page = self.browser();
        page.go("/sign-in");
        page.fill("[name=email]", &Self::email(name));
        page.fill("[name=password]", PASSWORD);
        page.click("main button[type=submit]");
        page
    }

    /// Creates a key in the console.
    pub(crate) fn make_key(page: &mut Page, name: &str) -> String {
        page.go("/keys");
        page.fill("#create [name=name]", name);
        page.click("#create button[type=submit]");
        page.eval("document.getElementById('key').textContent").as_str().expect("the key is shown").to_owned()
    }
}
