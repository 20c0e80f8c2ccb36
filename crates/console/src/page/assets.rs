//! Style sheet, scripts and icon. Their path contains a checksum of all of them, so that browsers may cache them
//! indefinitely. Scripts import each other by name, within one version.

use std::sync::LazyLock;

use crate::page::{ConsoleError, ConsoleResponse, ConsoleResult};

pub(crate) struct Asset {
    name: &'static str,
    content: &'static [u8],
}

macro_rules! asset {
    ($name:literal) => {
        Asset { name: $name, content: include_bytes!(concat!("../../assets/", $name)) }
    };
}

pub(crate) static STYLE: Asset = asset!("console.css");
pub(crate) static SCRIPT: Asset = asset!("console.js");
pub(crate) static ICON: Asset = asset!("icon.svg");
pub(crate) static PASSKEYS: Asset = asset!("passkeys.js");
pub(crate) static PLAYGROUND: Asset = asset!("playground.js");

static ALL: [&Asset; 8] = [
    &STYLE,
    &SCRIPT,
    &ICON,
    &PASSKEYS,
    &PLAYGROUND,
    // Imported by the playground.
    &asset!("answer.js"),
    &asset!("conversation.js"),
    &asset!("snippets.js"),
];

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = crc32fast::Hasher::new();
    ALL.iter().for_each(|asset| hasher.update(asset.content));
    format!("{:08x}", hasher.finalize())
});

impl Asset {
    pub(crate) fn path(&self) -> String {
        format!("/assets/{}/{}", *VERSION, self.name)
    }

    fn content_type(&self) -> &'static str {
        match self.name.rsplit('.').next() {
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            _ => "image/svg+xml",
        }
    }
}

pub(crate) fn get(version: &str, name: &str) -> ConsoleResult {
    let found = ALL.iter().find(|asset| asset.name == name && version == *VERSION);
    let asset = found.ok_or(ConsoleError::NotFound)?;
    Ok(ConsoleResponse::asset(asset.content_type(), asset.content))
}
