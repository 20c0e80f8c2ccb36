//! Posts notifications to a URL, signed as Standard Webhooks specifies, so that receivers can use its libraries.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chat::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, redirect};
use sha2::Sha256;
use url::Url;

use crate::error::CliError;
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_secs(10);
/// The prefix of secrets in base64.
const SECRET_PREFIX: &str = "whsec_";

pub(crate) struct Webhook {
    client: Client,
    url: Url,
    key: Vec<u8>,
}

impl Webhook {
    /// `None` if no URL is set.
    pub(crate) fn new(settings: &Settings) -> Result<Option<Self>, CliError> {
        let Some(url) = settings.webhook.url.clone() else { return Ok(None) };
        let key = settings.webhook.key.as_deref().filter(|key| !key.is_empty());
        let missing = "`webhook.url` is set, and `webhook.key` is not: notifications are signed with it";
        let key = key_bytes(key.ok_or_else(|| CliError::new(missing))?).map_err(CliError::new)?;
        // Without the environment's proxies, which are meant for other programs.
        let client = Client::builder().no_proxy().redirect(redirect::Policy::none()).timeout(TIMEOUT).build();
        let client = client.map_err(|error| CliError::new(format!("`webhook.url` cannot be used: {error}")))?;
        Ok(Some(Self { client, url, key }))
    }

    /// `Err` is the reason why it was not accepted, without the URL.
    pub(crate) async fn send(&self, id: &str, body: &str, now: Timestamp) -> Result<(), String> {
        let timestamp = now.as_seconds().to_string();
        let request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", &timestamp)
            .header("webhook-signature", format!("v1,{}", sign(&self.key, id, &timestamp, body)))
            .body(body.to_owned());
        let response = request.send().await.map_err(|error| error.without_url().to_string())?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("status {}", status.as_u16())),
        }
    }
}

fn key_bytes(secret: &str) -> Result<Vec<u8>, &'static str> {
    match secret.strip_prefix(SECRET_PREFIX) {
        Some(encoded) => BASE64_STANDARD.decode(encoded).map_err(|_| "`webhook.key` is not base64 after `whsec_`"),
        None => Ok(secret.as_bytes().to_vec()),
    }
}

fn sign(key: &[u8], id: &str, timestamp: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    BASE64_STANDARD.encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn signs_as_the_specification_does() {
        let key = key_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = r#"{"test": 2432232314}"#;
        let signature = sign(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body);
        assert_eq!(signature, "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(key_bytes("plain").unwrap(), b"plain");
        assert!(key_bytes("whsec_?").is_err());
    }
}
