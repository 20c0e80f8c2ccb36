//! Renders chat templates: Jinja as Hugging Face configures it, with the functions that it adds.
//!
//! A template comes with a downloaded model, so its computation and its output are bounded.

use std::io::{self, Write};

use chat::Role;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

const TEMPLATE: &str = "chat";
/// Steps of a template's program. A conversation of a thousand messages takes some 50,000.
const MAX_STEPS: u64 = 5_000_000;
/// The maximum that a template may write beside the contents.
const MAX_MARKUP_BYTES: usize = 1 << 20;

pub(crate) struct Jinja(Environment<'static>);

impl Jinja {
    /// `begin` and `end` are the texts of the tokens that begin and end a sequence.
    pub(crate) fn compile(template: &str, begin: String, end: String) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.add_global("bos_token", begin);
        environment.add_global("eos_token", end);
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(MAX_STEPS));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: &str| strftime(format, today()));
        environment.add_filter("tojson", to_json);
        // In Python, `None` is not iterable.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_template_owned(TEMPLATE, without_generation_tags(template))?;
        Ok(Self(environment))
    }

    /// Renders a conversation, up to where the completion begins.
    pub(crate) fn render(&self, messages: &[(Role, String)]) -> Result<String, Error> {
        let bytes: usize = messages.iter().map(|(_, content)| content.len()).sum();
        let messages: Vec<Value> = messages
            .iter()
            .map(|(role, content)| context! { role => role.as_str(), content => content.as_str() })
            .collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => true,
            // As Hugging Face passes them if there are none.
            tools => (),
            documents => (),
            // A completion of at most 512 tokens is too short for reasoning.
            enable_thinking => false,
            reasoning_effort => "low",
        };
        let mut bounded = Bounded { text: Vec::new(), left: Some(2 * bytes + MAX_MARKUP_BYTES) };
        let rendered = self.0.get_template(TEMPLATE)?.render_captured_to(context, &mut bounded).map(drop);
        if bounded.left.is_none() {
            return Err(Error::new(ErrorKind::WriteFailure, "it writes too much"));
        }
        rendered?;
        String::from_utf8(bounded.text).map_err(|_| Error::new(ErrorKind::WriteFailure, "it does not write text"))
    }
}

/// A text of bounded length.
struct Bounded {
    text: Vec<u8>,
    /// Bytes left; `None` after a write beyond the bound.
    left: Option<usize>,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.and_then(|left| left.checked_sub(bytes.len()));
        self.left.ok_or(io::ErrorKind::StorageFull)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// For training, templates mark the assistant's text with generation blocks. Here such a block stands for its contents.
fn without_generation_tags(template: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(template.len()), template);
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end) else { break };
        let inside = &rest[start + 2..end];
        let tag = inside.trim_matches(['-', '+']).trim();
        let replacement = match tag {
            "generation" => inside.replace(tag, "if true"),
            "endgeneration" => inside.replace(tag, "endif"),
            _ => inside.to_owned(),
        };
        plain.extend([&rest[..start + 2], &replacement, "%}"]);
        rest = &rest[end + 2..];
    }
    plain + rest
}

/// The beginning of the day, so that all prompts of a day begin alike and share their prefix.
fn today() -> DateTime {
    Timestamp::now().to_zoned(TimeZone::UTC).date().at(0, 0, 0, 0)
}

fn strftime(format: &str, time: DateTime) -> Result<String, Error> {
    let text = jiff::fmt::strtime::format(format, time);
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// As Python's `json.dumps` writes it, but escapes non-ASCII characters only with `ensure_ascii`.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let is_sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let is_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let invalid = |error: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, error.to_string());
    let value = match is_sorted {
        true => {
            let mut sorted = serde_json::to_value(value).map_err(|error| invalid(&error))?;
            sorted.sort_all_objects();
            Value::from(Serde(sorted))
        }
        false => value.clone(),
    };
    let mut written = Vec::new();
    let done = match (indent, separators.as_deref()) {
        (Some(indent), _) => {
            let indent = " ".repeat(indent.min(MAX_INDENT));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut written, formatter))
        }
        (None, Some([item, key])) => {
            value.serialize(&mut Serializer::with_formatter(&mut written, Separated { item, key }))
        }
        (None, _) => {
            value.serialize(&mut Serializer::with_formatter(&mut written, Separated { item: ", ", key: ": " }))
        }
    };
    done.map_err(|error| invalid(&error))?;
    let text = String::from_utf8(written).map_err(|error| invalid(&error))?;
    Ok(Value::from_safe_string(if is_ascii { escape(&text) } else { text }))
}

const MAX_INDENT: usize = 16;

fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c.is_ascii() {
            true => escaped.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped += &format!("\\u{unit:04x}")),
        }
    }
    escaped
}

/// JSON on one line, with these texts between items, and between keys and values.
struct Separated<'a> {
    item: &'a str,
    key: &'a str,
}

impl Formatter for Separated<'_> {
    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        writer.write_all(if is_first { b"" } else { self.item.as_bytes() })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        writer.write_all(if is_first { b"" } else { self.item.as_bytes() })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, messages: &[(Role, &str)]) -> Result<String, String> {
        let messages: Vec<_> = messages.iter().map(|(role, content)| (*role, (*content).to_owned())).collect();
        let jinja = Jinja::compile(template, "<s>".into(), "</s>".into()).map_err(|error| error.to_string())?;
        jinja.render(&messages).map_err(|error| format!("{error:#}"))
    }

    const HELLO: [(Role, &str); 2] = [(Role::System, "Be <brief>."), (Role::User, "Grüezi!")];

    /// Each case is a feature that templates of well-known models use.
    #[test]
    fn templates_are_rendered_as_their_authors_mean_them() {
        for (template, expected) in [
            ("{{ messages[1].content }}{{ bos_token }}", "Grüezi!<s>"),
            ("{% if tools is not none %}tools{% endif %}.", "."),
            ("{% if tools %}tools{% elif documents %}documents{% else %}none{% endif %}", "none"),
            ("{% if tools is defined and tools is none %}as passed{% endif %}", "as passed"),
            ("{% if tools is iterable and tools | length > 0 %}tools{% endif %}.", "."),
            ("a\n  {%- generation -%}  b  {%- endgeneration -%}\nc", "abc"),
            ("{% generation %}{{ messages[0]['role'] }}{% endgeneration %}", "system"),
            ("{{ messages[0] | tojson }}", r#"{"role": "system", "content": "Be <brief>."}"#),
            ("{{ [1, 'ü'] | tojson(ensure_ascii=True) }}", r#"[1, "\u00fc"]"#),
            ("{{ [1, 'ü'] | tojson(ensure_ascii=False) }}", r#"[1, "ü"]"#),
            ("{{ {'b': [], 'a': [1]} | tojson(indent=2) }}", "{\n  \"b\": [],\n  \"a\": [\n    1\n  ]\n}"),
            ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", r#"{"a":2,"b":1}"#),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            (
                "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content.upper() }}{% endfor %}",
                "GRÜEZI!",
            ),
            ("{{ messages[0].content.split(' ')[-1].strip('.') }}", "<brief>"),
            ("{% macro say(m) %}{{ m.role }}:{% endmacro %}{{ say(messages[1]) }}", "user:"),
            ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join }}", "Grüezi!"),
        ] {
            assert_eq!(rendered(template, &HELLO).as_deref(), Ok(expected), "{template}");
        }
        let refusal = rendered("{{ raise_exception('No system role.') }}", &HELLO).unwrap_err();
        assert!(refusal.contains("No system role."), "{refusal}");
    }

    #[test]
    fn dates_are_formatted_and_change_once_a_day() {
        let time = jiff::civil::date(2026, 3, 7).at(0, 0, 0, 0);
        for (format, expected) in
            [("%d %b %Y", "07 Mar 2026"), ("%B %d, %Y", "March 07, 2026"), ("%Y-%m-%d %H:%M", "2026-03-07 00:00")]
        {
            assert_eq!(strftime(format, time).unwrap(), expected);
        }
        let date = rendered("{{ strftime_now('%Y-%m-%d') }}", &HELLO).unwrap();
        assert!(date.starts_with("20") && date.len() == 10, "{date}");
        assert!(rendered("{{ strftime_now('%Q') }}", &HELLO).is_err());
    }

    #[test]
    fn templates_that_compute_or_write_without_end_are_stopped() {
        let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a * b %}{% endfor %}{% endfor %}";
        assert!(rendered(loops, &HELLO).unwrap_err().contains("fuel"));
        let writes = "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}";
        let refusal = rendered(writes, &HELLO).unwrap_err();
        assert!(refusal.contains("too much"), "{refusal}");
    }

    /// For templates of real models: `CHAT_TEMPLATES=FOLDER cargo test -p engine templates_of -- --ignored`, for example
    /// with `models/templates` of llama.cpp's repository.
    #[test]
    #[ignore = "needs a folder of templates"]
    fn templates_of_well_known_models_are_rendered() {
        let folder = std::env::var("CHAT_TEMPLATES").unwrap();
        let turns = [(Role::User, "zebra"), (Role::Assistant, "yak"), (Role::User, "xerus")];
        let (mut tried, mut failed) = (0, Vec::new());
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            tried += 1;
            match rendered(&std::fs::read_to_string(&path).unwrap(), &turns) {
                Ok(prompt) if turns.iter().all(|(_, content)| prompt.contains(content)) => {}
                result => failed.push((path, result)),
            }
        }
        assert!(tried > 0 && failed.is_empty(), "{} of {tried}: {failed:#?}", failed.len());
    }
}
