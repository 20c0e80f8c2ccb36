//! The frame around every page: head, navigation, messages.

use maud::{DOCTYPE, Markup, html};

use crate::page::assets;
use crate::page::components::button_form;
use crate::page::error::ConsoleError;
use crate::page::session::{Anonymous, SignedIn};

/// In the order of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    Overview,
    Keys,
    Usage,
    Requests,
    Limits,
    Playground,
    Team,
    Audit,
    Account,
}

impl Area {
    const ALL: [Self; 9] = [
        Self::Overview,
        Self::Keys,
        Self::Usage,
        Self::Requests,
        Self::Limits,
        Self::Playground,
        Self::Team,
        Self::Audit,
        Self::Account,
    ];

    fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Keys => "/keys",
            Self::Usage => "/usage",
            Self::Requests => "/requests",
            Self::Limits => "/limits",
            Self::Playground => "/playground",
            Self::Team => "/team",
            Self::Audit => "/audit",
            Self::Account => "/account",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Keys => "API Keys",
            Self::Usage => "Usage",
            Self::Requests => "Requests",
            Self::Limits => "Limits",
            Self::Playground => "Playground",
            Self::Team => "Team",
            Self::Audit => "Audit log",
            Self::Account => "Account",
        }
    }

    /// The area that a page belongs to.
    pub(crate) fn of_path(path: &str) -> Self {
        let is_in = |area: &Self| *area != Self::Overview && path.starts_with(area.path());
        Self::ALL.into_iter().find(is_in).unwrap_or(Self::Overview)
    }

    fn is_for_admins(self) -> bool {
        matches!(self, Self::Team | Self::Audit)
    }
}

pub(crate) fn page(user: &SignedIn<'_>, area: Area, title: &str, content: Markup) -> Markup {
    frame(Some((user, Some(area))), title, user.message.as_deref(), content)
}

pub(crate) fn anonymous_page(visitor: &Anonymous<'_>, title: &str, content: Markup) -> Markup {
    frame(None, title, visitor.message.as_deref(), content)
}

/// For a person whose session has just ended.
pub(crate) fn signed_out_page(title: &str, content: Markup) -> Markup {
    frame(None, title, None, content)
}

pub(crate) fn error_page(user: Option<&SignedIn<'_>>, error: &ConsoleError) -> Markup {
    let content = html! {
        section.card.narrow {
            h1 { (error.heading()) }
            p { (error) }
            p { a.button href="/" { "Back to the overview" } }
        }
    };
    frame(user.map(|user| (user, None)), error.heading(), None, content)
}

fn frame(user: Option<(&SignedIn<'_>, Option<Area>)>, title: &str, message: Option<&str>, content: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Adriaticum" }
                link rel="stylesheet" href=(assets::STYLE.path());
                link rel="icon" href=(assets::ICON.path()) type="image/svg+xml";
                script src=(assets::SCRIPT.path()) defer {}
            }
            body.signed-out[user.is_none()] {
                a.skip href="#content" { "Skip to content" }
                header.top {
                    a.brand href="/" {
                        img src=(assets::ICON.path()) width="28" height="28" alt="";
                        span { "Adriaticum" }
                    }
                    @if let Some((user, area)) = user {
                        (navigation(user, area))
                        (account(user))
                    }
                }
                main #content tabindex="-1" {
                    @if let Some(message) = message {
                        p.message role="status" { (message) }
                    }
                    (content)
                    @if user.is_some() { p.quiet.small #zone { "All times are UTC." } }
                }
            }
        }
    }
}

fn navigation(user: &SignedIn<'_>, current: Option<Area>) -> Markup {
    html! {
        nav aria-label="Main" {
            ul {
                @for area in Area::ALL.into_iter().filter(|area| user.is_admin() || !area.is_for_admins()) {
                    li {
                        @let here = (current == Some(area)).then_some("page");
                        a href=(area.path()) aria-current=[here] { (area.name()) }
                    }
                }
            }
        }
    }
}

fn account(user: &SignedIn<'_>) -> Markup {
    html! {
        div.person {
            @if let Some(account) = user.viewer().account() {
                span.who title=(account.email) { (account.name) }
            }
            (button_form(user, "/sign-out", "Sign out", "plain"))
        }
    }
}
