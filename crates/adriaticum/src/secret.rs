//! What of a setting's value people may see.

/// Settings of which nothing is ever shown.
const SECRET: &[&str] = &["runtime.key"];

/// A value as people may see it: with the user and password of any URL in it hidden, or all of it if it is a secret.
pub(crate) fn shown(name: &str, text: &str) -> String {
    match SECRET.contains(&name) && !text.is_empty() {
        true => "***".into(),
        false => masked(text),
    }
}

/// A text in which all is hidden that stands between a scheme and the last `@` before the next one: rather too much than a
/// piece of a password that was not written as it should be.
fn masked(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str("://");
        match part.rsplit_once('@') {
            Some((_hidden, rest)) => shown.extend(["***@", rest]),
            None => shown.push_str(part),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_password_is_shown() {
        for (name, value, seen) in [
            ("runtime.key", "Quagga", "***"),
            ("runtime.key", "", ""),
            ("runtime.urls", "http://a/v1,http://b:1/v1", "http://a/v1,http://b:1/v1"),
            ("runtime.urls", "http://Quagga@a/v1,https://:Quagga@b/v1", "http://***@a/v1,https://***@b/v1"),
            ("runtime.urls", "http://:Qua/gga@a/v1,http://b", "http://***@a/v1,http://b"),
            ("runtime.urls", "http://:Qua,gga@a/v1,http://b", "http://***@a/v1,http://b"),
            ("database_url", "postgres://me:Qua@gga@db/adriaticum", "postgres://***@db/adriaticum"),
        ] {
            assert_eq!(shown(name, value), seen, "{value}");
        }
    }
}
