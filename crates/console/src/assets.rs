//! Style sheet, script and icon, under names that change with their content, so that browsers may cache them for good.

use std::sync::LazyLock;

use crate::error::{ConsoleError, ConsoleResult};
use crate::response::ConsoleResponse;

pub(crate) struct Asset {
    stem: &'static str,
    ending: &'static str,
    kind: &'static str,
    content: &'static [u8],
    name: LazyLock<String>,
}

macro_rules! asset {
    ($id:ident, $stem:literal, $ending:literal, $kind:literal) => {
        pub(crate) static $id: Asset = Asset {
            stem: $stem,
            ending: $ending,
            kind: $kind,
            content: include_bytes!(concat!("../assets/", $stem, ".", $ending)),
            name: LazyLock::new(|| $id.named()),
        };
    };
}

asset!(STYLE, "console", "css", "text/css; charset=utf-8");
asset!(SCRIPT, "console", "js", "text/javascript; charset=utf-8");
asset!(ICON, "icon", "svg", "image/svg+xml");

impl Asset {
    pub(crate) fn path(&self) -> String {
        format!("/assets/{}", *self.name)
    }

    fn named(&self) -> String {
        format!("{}-{:08x}.{}", self.stem, crc32fast::hash(self.content), self.ending)
    }
}

pub(crate) fn get(name: &str) -> ConsoleResult {
    let asset = [&STYLE, &SCRIPT, &ICON].into_iter().find(|asset| *asset.name == name).ok_or(ConsoleError::NotFound)?;
    Ok(ConsoleResponse::asset(asset.kind, asset.content))
}
