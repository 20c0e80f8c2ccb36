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
    expand_width_ranges(&mut pdf);
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

/// Writes every range of character widths as a list. pdf-extract ignores ranges, and then takes the kerning of browsers'
/// PDFs for spaces.
fn expand_width_ranges(pdf: &mut Pdf) {
    let mut elsewhere = Vec::new();
    for object in pdf.objects.values_mut() {
        let Ok(font) = object.as_dict_mut() else { continue };
        match font.get_mut(b"W") {
            Ok(Object::Array(widths)) => *widths = as_lists(widths),
            Ok(Object::Reference(id)) => elsewhere.push(*id),
            _ => {}
        }
    }
    for id in elsewhere {
        if let Some(Object::Array(widths)) = pdf.objects.get_mut(&id) {
            *widths = as_lists(widths);
        }
    }
}

/// Widths as `FIRST [WIDTH …]` only, without `FIRST LAST WIDTH`. Unchanged if it is unknown which of the two a reference is.
fn as_lists(widths: &[Object]) -> Vec<Object> {
    if widths.iter().any(|object| matches!(object, Object::Reference(_))) {
        return widths.to_owned();
    }
    let (mut lists, mut rest, mut left) = (Vec::new(), widths, MAX_WIDTHS);
    loop {
        match rest {
            [first, list @ Object::Array(_), after @ ..] => {
                lists.extend([first.clone(), list.clone()]);
                rest = after;
            }
            [first, last, width, after @ ..] => {
                let count = first
                    .as_i64()
                    .ok()
                    .zip(last.as_i64().ok())
                    .map_or(0, |(a, b)| b.saturating_sub(a).saturating_add(1));
                let count = usize::try_from(count).unwrap_or(0).min(left);
                left -= count;
                lists.extend([first.clone(), Object::Array(vec![width.clone(); count])]);
                rest = after;
            }
            _ => return lists,
        }
    }
}

/// The number of characters that a font can have.
const MAX_WIDTHS: usize = 1 << 16;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_widths_become_lists() {
        let integers = |numbers: &[i64]| numbers.iter().map(|number| Object::Integer(*number)).collect::<Vec<_>>();
        let list = |numbers: &[i64]| Object::Array(integers(numbers));
        let widths = [integers(&[3, 5, 318, 55]), vec![list(&[667, 0])], integers(&[7, 7, 500, 9, 8, 1, 4])].concat();
        let three = Object::Integer(3);
        let expected = [
            vec![three, list(&[318; 3])],
            vec![Object::Integer(55), list(&[667, 0])],
            integers(&[7]),
            vec![list(&[500])],
        ];
        let expected = [expected.concat(), vec![Object::Integer(9), list(&[])]].concat();
        assert_eq!(as_lists(&widths), expected, "what is cut off at the end is left out");
        let Object::Array(bounded) = &as_lists(&integers(&[0, i64::MAX, 1]))[1] else { panic!("no list") };
        assert_eq!(bounded.len(), MAX_WIDTHS);
        let elsewhere = [integers(&[0]), vec![Object::Reference((12, 0))], integers(&[3, 5, 318])].concat();
        assert_eq!(as_lists(&elsewhere), elsewhere);
    }
}
