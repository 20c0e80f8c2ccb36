//! Tables that are sorted by clicking a column title. The order is in the query (`sort=name`, `sort=-requests`), so it
//! needs no script and can be shared. The last order of each page is kept in a cookie, which holds nothing else.

use std::cmp::Reverse;

use maud::{Markup, html};

use crate::page::cookies::Cookie;
use crate::page::{Console, ConsoleRequest, ConsoleResult, Fields};

const QUERY_FIELD: &str = "sort";
const MAX_NAME_BYTES: usize = 24;
const COOKIE_SECONDS: u32 = 365 * 86_400;
/// Pages with such a table, by their path.
const PAGES: [&str; 3] = ["keys", "limits", "team"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Ascending,
    Descending,
}

/// A sortable column; `By` is the page's enum of columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column<By> {
    by: By,
    /// In the query.
    name: &'static str,
    title: &'static str,
    /// The direction of the first click.
    first: Direction,
    is_number: bool,
}

impl<By> Column<By> {
    /// From A to Z first.
    pub(crate) const fn text(by: By, name: &'static str, title: &'static str) -> Self {
        Self { by, name, title, first: Direction::Ascending, is_number: false }
    }

    /// The newest first.
    pub(crate) const fn time(by: By, name: &'static str, title: &'static str) -> Self {
        Self { by, name, title, first: Direction::Descending, is_number: false }
    }

    /// The largest first; aligned to the right.
    pub(crate) const fn number(by: By, name: &'static str, title: &'static str) -> Self {
        Self { by, name, title, first: Direction::Descending, is_number: true }
    }

    fn link(&self, direction: Direction) -> String {
        match direction {
            Direction::Ascending => self.name.to_owned(),
            Direction::Descending => format!("-{}", self.name),
        }
    }
}

/// The order of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order<By> {
    pub(crate) by: By,
    pub(crate) direction: Direction,
}

impl<By: Copy + PartialEq> Order<By> {
    /// As the query says, or else by `default` in its first direction.
    pub(crate) fn from_query(query: &Fields, columns: &[Column<By>], default: Order<By>) -> Self {
        let asked = query.get(QUERY_FIELD);
        let (name, direction) = match asked.strip_prefix('-') {
            Some(name) => (name, Direction::Descending),
            None => (asked, Direction::Ascending),
        };
        columns.iter().find(|column| column.name == name).map_or(default, |column| Self { by: column.by, direction })
    }

    pub(crate) fn sort<Row, Key: Ord>(self, rows: &mut [Row], key: impl Fn(&Row) -> Key) {
        match self.direction {
            Direction::Ascending => rows.sort_by_cached_key(key),
            Direction::Descending => rows.sort_by_cached_key(|row| Reverse(key(row))),
        }
    }

    /// The column titles, each a link that sorts by the column. `kept` are the fields of the query that stay;
    /// `anchor` is the position of the table on a long page, such as `#table`.
    pub(crate) fn head(self, columns: &[Column<By>], kept: &Fields, anchor: &str) -> Markup {
        html! {
            @for column in columns {
                @let (next, current) = match (column.by == self.by, self.direction) {
                    (false, _) => (column.first, None),
                    (true, Direction::Ascending) => (Direction::Descending, Some("ascending")),
                    (true, Direction::Descending) => (Direction::Ascending, Some("descending")),
                };
                th.right[column.is_number] scope="col" aria-sort=[current] {
                    a href={ (kept.with(QUERY_FIELD, &column.link(next))) (anchor) } { (column.title) }
                }
            }
        }
    }

    /// The same choice in a filter form, for narrow screens, which have no column titles.
    pub(crate) fn choice(self, columns: &[Column<By>]) -> Markup {
        html! {
            label.narrow-only { "Sort by"
                select name=(QUERY_FIELD) {
                    @for column in columns {
                        @for (direction, mark) in [(Direction::Ascending, "▲"), (Direction::Descending, "▼")] {
                            @let is_current = self == Self { by: column.by, direction };
                            option value=(column.link(direction)) selected[is_current] { (column.title) " " (mark) }
                        }
                    }
                }
            }
        }
    }
}

/// Runs a page's handler with the order of the last visit, or with the order in the query, which is then remembered.
pub(crate) async fn remembered(
    console: &Console,
    request: &ConsoleRequest,
    page: &str,
    handler: impl AsyncFnOnce(&Fields) -> ConsoleResult,
) -> ConsoleResult {
    let kept = Fields::parse(console.cookie(request, Cookie::Sort).unwrap_or_default().as_bytes()).only(&PAGES);
    let (asked, last) = (request.query.get(QUERY_FIELD), kept.get(page));
    if asked.is_empty() {
        return handler(&request.query.set(QUERY_FIELD, last)).await;
    }
    let response = handler(&request.query).await?;
    if asked == last || asked.len() > MAX_NAME_BYTES {
        return Ok(response);
    }
    let cookie = kept.with(page, asked);
    Ok(console.set_cookie(response, Cookie::Sort, cookie.trim_start_matches('?'), COOKIE_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<char>; 2] = [Column::text('n', "name", "Name"), Column::number('r', "requests", "Requests")];
    const DEFAULT: Order<char> = Order { by: 'n', direction: Direction::Ascending };

    fn order(query: &str) -> Order<char> {
        Order::from_query(&Fields::parse(query.as_bytes()), &COLUMNS, DEFAULT)
    }

    #[test]
    fn the_query_names_column_and_direction() {
        for (query, by, direction) in [
            ("", 'n', Direction::Ascending),
            ("sort=-name", 'n', Direction::Descending),
            ("sort=requests", 'r', Direction::Ascending),
            ("sort=-requests", 'r', Direction::Descending),
            ("sort=nonsense", 'n', Direction::Ascending),
            ("sort=-", 'n', Direction::Ascending),
        ] {
            assert_eq!(order(query), Order { by, direction }, "{query}");
        }
    }

    #[test]
    fn a_title_sorts_by_its_column_first_and_then_the_other_way_round() {
        let kept = Fields::parse(b"find=a%26b");
        let head = order("sort=-requests").head(&COLUMNS, &kept, "").into_string();
        assert!(head.contains(r#"<th class="right" scope="col" aria-sort="descending">"#), "{head}");
        assert!(head.contains(r#"href="?find=a%26b&amp;sort=requests""#), "{head}");
        assert!(head.contains(r#"href="?find=a%26b&amp;sort=name""#), "{head}");
        assert_eq!(head.matches("aria-sort").count(), 1, "{head}");
    }

    #[test]
    fn equal_rows_keep_their_order() {
        for query in ["sort=name", "sort=-name"] {
            let mut rows = [("b", 1), ("a", 2), ("b", 3), ("a", 4)];
            order(query).sort(&mut rows, |row| row.0);
            let numbers = rows.map(|row| row.1);
            assert_eq!(numbers, if query == "sort=name" { [2, 4, 1, 3] } else { [1, 3, 2, 4] });
        }
    }
}
