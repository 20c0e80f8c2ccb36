//! Pages of long lists, by the field `page` of the query.

use format::number;
use maud::{Markup, html};

use crate::page::Fields;

const PAGE_SIZE: usize = 50;
const QUERY_FIELD: &str = "page";

pub(crate) struct Paging {
    page: usize,
    last: usize,
    rows: usize,
}

impl Paging {
    /// A page number out of range becomes the nearest page.
    pub(crate) fn new(query: &Fields, rows: usize) -> Self {
        let last = rows.div_ceil(PAGE_SIZE).max(1);
        Self { page: query.get(QUERY_FIELD).parse().unwrap_or(1).clamp(1, last), last, rows }
    }

    /// The rows of this page.
    pub(crate) fn cut<'r, Row>(&self, rows: &'r [Row]) -> &'r [Row] {
        let start = (self.page - 1) * PAGE_SIZE;
        rows.get(start..rows.len().min(start + PAGE_SIZE)).unwrap_or_default()
    }

    /// Links to the previous and the next page, if any. `kept` are the fields of the query that stay; `anchor` is the
    /// position of the list on a long page, such as `#table`.
    pub(crate) fn links(&self, kept: &Fields, noun: &str, anchor: &str) -> Markup {
        let link = |page: usize| kept.with(QUERY_FIELD, &page.to_string()) + anchor;
        html! {
            @if self.last > 1 {
                nav.pages aria-label={ "Pages of " (noun) "s" } {
                    @if self.page > 1 { a.button.plain rel="prev" href=(link(self.page - 1)) { "Previous" } }
                    span {
                        "Page " (number(self.page as u64)) " of " (number(self.last as u64)) ", "
                        (format::count(self.rows as u64, noun))
                    }
                    @if self.page < self.last { a.button.plain rel="next" href=(link(self.page + 1)) { "Next" } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_on_one_page() {
        for count in [0, 1, 50, 51, 120] {
            let rows: Vec<usize> = (0..count).collect();
            let page = |at: usize| Paging::new(&Fields::parse(format!("page={at}").as_bytes()), count);
            let all: Vec<usize> = (1..=page(1).last).flat_map(|at| page(at).cut(&rows).to_vec()).collect();
            assert_eq!(all, rows);
        }
    }

    #[test]
    fn a_page_out_of_range_becomes_the_nearest_one() {
        for (asked, expected) in [("0", 1), ("3", 3), ("4", 3), ("99999999999999999999999", 1), ("-1", 1), ("x", 1)] {
            let paging = Paging::new(&Fields::parse(format!("page={asked}").as_bytes()), 120);
            assert_eq!(paging.page, expected, "{asked}");
        }
    }
}
