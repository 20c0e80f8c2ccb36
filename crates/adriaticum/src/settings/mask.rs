//! Hides secrets in the values of settings.

use url::Url;

use super::Setting;

impl Setting {
    /// The value without secrets: user and password of any URL are hidden, or more if the setting is a secret or holds
    /// one in its path.
    pub(super) fn mask(&self, text: &str) -> String {
        match text {
            "" => String::new(),
            _ if self.is_secret => "***".into(),
            _ if self.has_secret_path => mask_path(text),
            _ => mask_urls(text),
        }
    }
}

/// Only scheme, host and port.
fn mask_path(text: &str) -> String {
    let origin = Url::parse(text).ok().map(|url| url.origin()).filter(url::Origin::is_tuple);
    origin.map_or_else(|| "***".into(), |origin| format!("{}/***", origin.ascii_serialization()))
}

/// Hides everything between a scheme and the last `@` before the next scheme. That may hide more than needed, but
/// it hides a whole password even if that is not percent-encoded.
fn mask_urls(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        match part.rsplit_once('@') {
            Some((_hidden, rest)) => masked.extend(["***@", rest]),
            None => masked.push_str(part),
        }
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::super::SETTINGS;

    #[test]
    fn no_part_of_a_password_is_shown() {
        for (name, value, masked) in [
            ("runtime.key", "Quagga", "***"),
            ("runtime.key", "", ""),
            ("runtime.urls", "http://a/v1,http://b:1/v1", "http://a/v1,http://b:1/v1"),
            ("runtime.urls", "http://Quagga@a/v1,https://:Quagga@b/v1", "http://***@a/v1,https://***@b/v1"),
            ("runtime.urls", "http://:Qua/gga@a/v1,http://b", "http://***@a/v1,http://b"),
            ("runtime.urls", "http://:Qua,gga@a/v1,http://b", "http://***@a/v1,http://b"),
            ("database_url", "postgres://me:Qua@gga@db/adriaticum", "postgres://***@db/adriaticum"),
            ("webhook.url", "https://hooks.example.com:8443/T/Quagga?x=Quagga", "https://hooks.example.com:8443/***"),
            ("webhook.url", "https://Quagga:Quagga@hooks.example.com/Qua@gga", "https://hooks.example.com/***"),
            ("webhook.url", "hooks.example.com/Quagga", "***"),
            ("webhook.url", "", ""),
        ] {
            let setting = SETTINGS.iter().find(|setting| setting.name == name).unwrap();
            assert_eq!(setting.mask(value), masked, "{value}");
        }
    }
}
