//! A request as a program in several languages. Overview shows an example; the playground's script fills the same
//! templates with the conversation on the screen (`assets/snippets.js`).

const KEY_VARIABLE: &str = "$ADRIATICUM_API_KEY";

/// The name of each language, and its template without base URL.
const TEMPLATES: [(&str, &str); 4] = [
    ("curl", include_str!("../../assets/snippets/request.sh")),
    ("Python", include_str!("../../assets/snippets/request.py")),
    ("JavaScript", include_str!("../../assets/snippets/request.js")),
    ("Rust", include_str!("../../assets/snippets/request.rs.txt")),
];

/// The language, and a template in which `{request}` is a JSON object and `{arguments}` are Python's keyword arguments.
pub(crate) fn templates(base_url: &str) -> [(&'static str, String); 4] {
    TEMPLATES.map(|(language, template)| {
        (language, template.trim_end().replace("{base_url}", base_url).replace("{key}", KEY_VARIABLE))
    })
}

/// The language, and a first request.
pub(crate) fn examples(base_url: &str) -> [(&'static str, String); 4] {
    templates(base_url).map(|(language, template)| (language, with_example(&template)))
}

/// A first request with that key.
pub(crate) fn curl(base_url: &str, key: &str) -> String {
    let [(_, template), ..] = templates(base_url);
    with_example(&template).replace(KEY_VARIABLE, key)
}

fn with_example(template: &str) -> String {
    let messages = r#"[{"role": "user", "content": "Hello!"}]"#;
    let request = format!(r#"{{"model": "{}", "messages": {messages}}}"#, chat::MODEL);
    let arguments = format!("    model=\"{}\",\n    messages={messages},", chat::MODEL);
    template.replace("{request}", &request).replace("{arguments}", &arguments)
}
