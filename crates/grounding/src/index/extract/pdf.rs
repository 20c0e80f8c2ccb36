//! PDF: text page by page, title and date from the information dictionary.

use jiff::civil::Date;
use pdf_extract::{Dictionary, Document as Pdf, Object, PlainTextOutput, decode_text_string, output_doc};

use super::SkipReason;
use super::text::paragraphs;
use crate::date::parse_date;
use crate::index::document::{Document, collapse_whitespace};

const DAMAGED: &str = "the PDF is damaged, or of a kind that cannot be read";

pub(super) fn read(bytes: &[u8]) -> Result<Document, SkipReason> {
    let mut pdf = Pdf::load_mem(bytes).map_err(|_| DAMAGED)?;
    // Many PDFs are encrypted with an empty password, to forbid printing.
    if pdf.is_encrypted() && pdf.decrypt("").is_err() {
        return Err("the PDF is encrypted".into());
    }
    let mut text = String::new();
    output_doc(&pdf, &mut PlainTextOutput::new(&mut text)).map_err(|_| DAMAGED)?;
    let information = information(&pdf);
    let mut document = Document {
        title: information
            .and_then(|of| text_of(of, b"Title"))
            .map(|title| collapse_whitespace(&title))
            .filter(|t| !t.is_empty()),
        date: information.and_then(|of| date_of(of, b"ModDate").or_else(|| date_of(of, b"CreationDate"))),
        ..Document::default()
    };
    for paragraph in paragraphs(&text) {
        document.push_paragraph(&paragraph);
    }
    Ok(document)
}

fn information(pdf: &Pdf) -> Option<&Dictionary> {
    let (_, object) = pdf.dereference(pdf.trailer.get(b"Info").ok()?).ok()?;
    object.as_dict().ok()
}

fn text_of(information: &Dictionary, name: &[u8]) -> Option<String> {
    information.get(name).ok().and_then(|object: &Object| decode_text_string(object).ok())
}

fn date_of(information: &Dictionary, name: &[u8]) -> Option<Date> {
    parse_date(&text_of(information, name)?)
}
