//! The frame around every page, and the pieces that pages are made of.

use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::form::TOKEN;
use crate::reply::Problem;
use crate::room::{Guest, Room};

/// The areas of the console, in the order of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    Overview,
    Keys,
    Usage,
    Requests,
    Playground,
    Team,
    Audit,
    Account,
}

impl Area {
    const ALL: [Self; 8] = [
        Self::Overview,
        Self::Keys,
        Self::Usage,
        Self::Requests,
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
            Self::Playground => "Playground",
            Self::Team => "Team",
            Self::Audit => "Audit log",
            Self::Account => "Account",
        }
    }

    fn is_for_admins(self) -> bool {
        matches!(self, Self::Team | Self::Audit)
    }
}

/// A page for somebody who is signed in.
pub(crate) fn page(room: &Room<'_>, area: Area, title: &str, content: Markup) -> Markup {
    framed(Some((room, Some(area))), title, room.message.as_deref(), content)
}

/// A page for somebody who is not.
pub(crate) fn guest_page(guest: &Guest<'_>, title: &str, content: Markup) -> Markup {
    framed(None, title, guest.message.as_deref(), content)
}

/// A page that says what went wrong.
pub(crate) fn problem(room: Option<&Room<'_>>, problem: &Problem) -> Markup {
    let content = html! {
        section.card.narrow {
            h1 { (problem.heading()) }
            p { (problem) }
            p { a.button href="/" { "To the overview" } }
        }
    };
    framed(room.map(|room| (room, None)), problem.heading(), None, content)
}

fn framed(room: Option<(&Room<'_>, Option<Area>)>, title: &str, message: Option<&str>, content: Markup) -> Markup {
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
            body.signed-out[room.is_none()] {
                a.skip href="#content" { "Skip to the content" }
                header.top {
                    a.brand href="/" {
                        img src=(assets::ICON.path()) width="28" height="28" alt="";
                        span { "Adriaticum" }
                    }
                    @if let Some((room, area)) = room {
                        (navigation(room, area))
                        (person(room))
                    }
                }
                main #content tabindex="-1" {
                    @if let Some(message) = message {
                        p.message role="status" { (message) }
                    }
                    (content)
                    noscript { p.quiet.small { "All times are UTC." } }
                }
            }
        }
    }
}

fn navigation(room: &Room<'_>, current: Option<Area>) -> Markup {
    html! {
        nav aria-label="Areas" {
            ul {
                @for area in Area::ALL.into_iter().filter(|area| room.is_admin() || !area.is_for_admins()) {
                    li {
                        @let here = (current == Some(area)).then_some("page");
                        a href=(area.path()) aria-current=[here] { (area.name()) }
                    }
                }
            }
        }
    }
}

fn person(room: &Room<'_>) -> Markup {
    let account = room.viewer().account();
    html! {
        div.person {
            @if let Some(account) = account {
                span.who title=(account.email) { (account.name) }
            }
            (button_form(room, "/sign-out", "Sign out", "plain"))
        }
    }
}

/// The hidden field that shows that a form is ours.
pub(crate) fn token(room: &Room<'_>) -> Markup {
    html! { input type="hidden" name=(TOKEN) value=(room.token()); }
}

/// A form that is only a button.
pub(crate) fn button_form(room: &Room<'_>, action: &str, label: &str, class: &str) -> Markup {
    html! {
        form.inline method="post" action=(action) {
            (token(room))
            button class=(class) type="submit" { (label) }
        }
    }
}

/// A title with what can be done beside it.
pub(crate) fn heading(title: &str, beside: Markup) -> Markup {
    html! { div.heading { h1 { (title) } div.actions { (beside) } } }
}

/// Text to be copied, with a button for it.
pub(crate) fn copyable(id: &str, text: &str) -> Markup {
    html! {
        div.copyable {
            pre tabindex="0" { code id=(id) { (text) } }
            button.plain type="button" data-copy=(id) { "Copy" }
        }
    }
}

/// What a page says where there is nothing yet.
pub(crate) fn empty(title: &str, content: Markup) -> Markup {
    html! { div.empty { h2 { (title) } (content) } }
}

/// What is wrong with a form.
pub(crate) fn complaint(text: Option<&str>) -> Markup {
    html! { @if let Some(text) = text { p.complaint role="alert" { (text) } } }
}

/// A change against the figure of the time before.
pub(crate) fn change(now: u64, before: u64, compared: &str) -> Markup {
    let title = format!("{} in {compared}", format::number(before));
    html! {
        p.change title=(title) {
            @match before {
                0 => span.quiet { "none in " (compared) },
                before if now == before => span.quiet { "as many as in " (compared) },
                before => { (growth(now as f64, before as f64)) " " span.quiet { "vs " (compared) } },
            }
        }
    }
}

/// How much more or less, in percent, or in times where that says more.
fn growth(now: f64, before: f64) -> String {
    let percent = (now - before) / before * 100.0;
    let sign = if percent > 0.0 { "+" } else { "−" };
    match percent.abs() {
        _ if percent >= 1000.0 => format!("{} ×", format::short_number(now / before)),
        percent if percent >= 10.0 => format!("{sign}{percent:.0} %"),
        percent => format!("{sign}{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::growth;

    #[test]
    fn growth_is_told_in_percent_or_in_times() {
        assert_eq!([growth(110.0, 100.0), growth(95.0, 100.0), growth(3000.0, 100.0)], ["+10 %", "−5.0 %", "30 ×"]);
    }
}
