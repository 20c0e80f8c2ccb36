//! Fuzzes configuration files: each is parsed, or refused with a short message that contains no secret.

use std::path::Path;

use fuzzer::Target;

use super::file;

const SECRET: &str = "Quagga-7Hd2kPq9";

#[test]
fn configuration_files() {
    let corpus = [
        "data_dir = \"data\"\n[api]\nlisten = \"127.0.0.1:8080\"\nmax_requests = 7\n[runtime]\nurls = [\"http://a:1\", \"http://b:2/v1\"]\nkey = \"Quagga-7Hd2kPq9\"\n",
        "grounding = 'auto'\nsearch.url = \"searxng+http://u:Quagga-7Hd2kPq9@a/\"\n[tls]\ncertificate = []\n# comment\n",
        "database_url = \"postgres://u:Quagga-7Hd2kPq9@h/db\"\napi.head_timeout = \"9s\"\nx = 1979-05-27T07:32:00Z\n[a.b.c]\nd = { e = 1.5 }\n",
    ];
    let words = [
        "[", "]", "[[", "= ", "\"", "'''", "{", "}", "\n", "Quagga-7Hd2kPq9", "true", "nan", "\\u0000", "a.b",
        "\u{feff}", "#", "[a]\n",
    ];
    let target = Target::new("configuration files").corpus(corpus).dictionary(words).max_bytes(2_000);
    target.run_text(|text| match file::parse(Path::new("adriaticum.toml"), text) {
        Ok(settings) => {
            assert!(text.parse::<toml::Table>().is_ok());
            (true, settings.len().min(20), String::new())
        }
        Err(error) => {
            let message = error.to_string();
            // Backticks enclose names of settings, which are no secrets.
            let values: String = message.split('`').step_by(2).collect();
            assert!(!values.contains(SECRET), "{message}");
            assert!(message.len() < text.len() + 300, "{message}");
            (false, 0, message.chars().filter(|c| c.is_ascii_alphabetic()).skip(30).take(30).collect())
        }
    });
}
