//! The frame around every page: head, navigation, messages.

use maud::{DOCTYPE, Markup, html};

use crate::page::{Anonymous, ConsoleError, SignedIn, assets, button_form, notice};

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

/// In the order of the navigation: each area, its path, its name, and whether it is for administrators only.
const AREAS: [(Area, &str, &str, bool); 9] = [
    (Area::Overview, "/", "Overview", false),
    (Area::Keys, "/keys", "API Keys", false),
    (Area::Usage, "/usage", "Usage", false),
    (Area::Requests, "/requests", "Requests", false),
    (Area::Limits, "/limits", "Limits", false),
    (Area::Playground, "/playground", "Playground", false),
    (Area::Team, "/team", "Team", true),
    (Area::Audit, "/audit", "Audit log", true),
    (Area::Account, "/account", "Account", false),
];

impl Area {
    /// The area that a page belongs to.
    pub(crate) fn from_path(path: &str) -> Self {
        let mut areas = AREAS.into_iter().filter(|(area, ..)| *area != Self::Overview);
        areas.find(|(_, start, ..)| path.starts_with(start)).map_or(Self::Overview, |(area, ..)| area)
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
    let content = notice(error.heading(), html! { p { (error) } }, "/", "Back to the overview");
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
                @for (area, path, name, _) in AREAS.into_iter().filter(|(.., for_admins)| user.is_admin() || !for_admins) {
                    li { a href=(path) aria-current=[(current == Some(area)).then_some("page")] { (name) } }
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
