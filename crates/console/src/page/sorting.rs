//! Tables that are sorted by clicking a column title. The order is in the query (`sort=name`, `sort=-requests`), so it
//! needs no script and can be shared. The last order of each page is kept in a cookie, which holds nothing else.

use std::borrow::Borrow;
use std::cmp::Reverse;

use chat::Timestamp;
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

/// A sortable column of a table.
pub(crate) struct Column<Row> {
    /// In the query.
    name: &'static str,
    title: &'static str,
    /// The direction of the first click.
    first: Direction,
    is_number: bool,
    key: SortKey<Row>,
}

/// What rows are compared by.
enum SortKey<Row> {
    Text(fn(&Row) -> String),
    Time(fn(&Row) -> Option<Timestamp>),
    Number(fn(&Row) -> Option<u128>),
}

impl<Row> Column<Row> {
    /// From A to Z first.
    pub(crate) const fn text(name: &'static str, title: &'static str, key: fn(&Row) -> String) -> Self {
        Self { name, title, first: Direction::Ascending, is_number: false, key: SortKey::Text(key) }
    }

    /// The newest first.
    pub(crate) const fn time(name: &'static str, title: &'static str, key: fn(&Row) -> Option<Timestamp>) -> Self {
        Self { name, title, first: Direction::Descending, is_number: false, key: SortKey::Time(key) }
    }

    /// The next one first.
    pub(crate) const fn due_time(name: &'static str, title: &'static str, key: fn(&Row) -> Option<Timestamp>) -> Self {
        Self { first: Direction::Ascending, ..Self::time(name, title, key) }
    }

    /// The largest first; aligned to the right.
    pub(crate) const fn number(name: &'static str, title: &'static str, key: fn(&Row) -> Option<u128>) -> Self {
        Self { name, title, first: Direction::Descending, is_number: true, key: SortKey::Number(key) }
    }

    fn link(&self, direction: Direction) -> String {
        match direction {
            Direction::Ascending => self.name.to_owned(),
            Direction::Descending => format!("-{}", self.name),
        }
    }

    fn key(&self, row: &Row) -> (Option<u128>, String) {
        match self.key {
            SortKey::Text(key) => (None, key(row)),
            SortKey::Time(key) => (key(row).map(|time| time.as_millis().into()), String::new()),
            SortKey::Number(key) => (key(row), String::new()),
        }
    }
}

/// The order of a table's rows.
pub(crate) struct Order<'c, Row> {
    columns: &'c [Column<Row>],
    column: &'c Column<Row>,
    pub(crate) direction: Direction,
}

impl<'c, Row> Order<'c, Row> {
    /// As the query says, or else by `default`, which is written as in the query, or by the first column.
    pub(crate) fn from_query(query: &Fields, columns: &'c [Column<Row>], default: &str) -> Self {
        let parse = |text: &str| {
            let (name, direction) = match text.strip_prefix('-') {
                Some(name) => (name, Direction::Descending),
                None => (text, Direction::Ascending),
            };
            let column = columns.iter().find(|column| column.name == name)?;
            Some(Self { columns, column, direction })
        };
        let first = Self { columns, column: &columns[0], direction: Direction::Ascending };
        parse(query.get(QUERY_FIELD)).or_else(|| parse(default)).unwrap_or(first)
    }

    /// The name of the column.
    pub(crate) fn name(&self) -> &'static str {
        self.column.name
    }

    pub(crate) fn sort<Item: Borrow<Row>>(&self, rows: &mut [Item]) {
        match self.direction {
            Direction::Ascending => rows.sort_by_cached_key(|row| self.column.key(row.borrow())),
            Direction::Descending => rows.sort_by_cached_key(|row| Reverse(self.column.key(row.borrow()))),
        }
    }

    /// The column titles, each a link that sorts by the column. `kept` are the fields of the query that stay;
    /// `anchor` is the position of the table on a long page, such as `#table`.
    pub(crate) fn head(&self, kept: &Fields, anchor: &str) -> Markup {
        html! {
            @for column in self.columns {
                @let (next, current) = match (column.name == self.name(), self.direction) {
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
    pub(crate) fn choice(&self) -> Markup {
        html! {
            label.narrow-only { "Sort by"
                select name=(QUERY_FIELD) {
                    @for column in self.columns {
                        @for (direction, mark) in [(Direction::Ascending, "▲"), (Direction::Descending, "▼")] {
                            @let is_current = column.name == self.name() && direction == self.direction;
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
    let (chosen, last) = (request.query.get(QUERY_FIELD), kept.get(page));
    if chosen.is_empty() {
        return handler(&request.query.set(QUERY_FIELD, last)).await;
    }
    let response = handler(&request.query).await?;
    if chosen == last || chosen.len() > MAX_NAME_BYTES {
        return Ok(response);
    }
    let cookie = kept.with(page, chosen);
    Ok(console.set_cookie(response, Cookie::Sort, cookie.trim_start_matches('?'), COOKIE_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<(&str, u32)>; 2] = [
        Column::text("name", "Name", |row| row.0.to_owned()),
        Column::number("requests", "Requests", |row| Some(row.1.into())),
    ];

    fn order(query: &str) -> Order<'static, (&'static str, u32)> {
        Order::from_query(&Fields::parse(query.as_bytes()), &COLUMNS, "name")
    }

    #[test]
    fn the_query_names_column_and_direction() {
        for (query, name, direction) in [
            ("", "name", Direction::Ascending),
            ("sort=-name", "name", Direction::Descending),
            ("sort=requests", "requests", Direction::Ascending),
            ("sort=-requests", "requests", Direction::Descending),
            ("sort=nonsense", "name", Direction::Ascending),
            ("sort=-", "name", Direction::Ascending),
        ] {
            let order = order(query);
            assert_eq!((order.name(), order.direction), (name, direction), "{query}");
        }
    }

    #[test]
    fn a_title_sorts_by_its_column_first_and_then_the_other_way_round() {
        let kept = Fields::parse(b"find=a%26b");
        let head = order("sort=-requests").head(&kept, "").into_string();
        assert!(head.contains(r#"<th class="right" scope="col" aria-sort="descending">"#), "{head}");
        assert!(head.contains(r#"href="?find=a%26b&amp;sort=requests""#), "{head}");
        assert!(head.contains(r#"href="?find=a%26b&amp;sort=name""#), "{head}");
        assert_eq!(head.matches("aria-sort").count(), 1, "{head}");
    }

    #[test]
    fn equal_rows_keep_their_order() {
        for query in ["sort=name", "sort=-name"] {
            let mut rows = [("b", 1), ("a", 2), ("b", 3), ("a", 4)];
            order(query).sort(&mut rows);
            let numbers = rows.map(|row| row.1);
            assert_eq!(numbers, if query == "sort=name" { [2, 4, 1, 3] } else { [1, 3, 2, 4] });
        }
    }
}
