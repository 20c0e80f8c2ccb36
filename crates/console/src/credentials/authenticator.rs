//! Codes of authenticator apps (TOTP): six digits and a step of 30 seconds, which every app supports.

use chat::Timestamp;
use maud::{Markup, PreEscaped};
use qrcode::QrCode;
use qrcode::render::svg;
use totp_rs::{Builder, Secret, Totp};

const ISSUER: &str = "Adriaticum";
/// As RFC 4226 recommends.
const KEY_BYTES: usize = 20;
const STEP_SECONDS: u64 = 30;
/// A phone's clock may be off by one step.
const SKEW_STEPS: u16 = 1;

/// The secret that the service and an app share.
pub(crate) struct AuthenticatorKey(Vec<u8>);

impl AuthenticatorKey {
    /// Fails only if the system has no random numbers.
    pub(crate) fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = vec![0; KEY_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// From base32; `None` if it is malformed or has another length.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let Ok(secret) = Secret::try_from_base32(text) else { return None };
        let bytes = secret.as_ref().to_vec();
        (bytes.len() == KEY_BYTES).then_some(Self(bytes))
    }

    /// In base32, for typing into an app.
    pub(crate) fn text(&self) -> String {
        Secret::from(self.0.clone()).to_base32()
    }

    /// The time step of the typed code, if that step is current.
    pub(crate) fn step_of(&self, typed: &str, now: Timestamp) -> Option<u64> {
        let digits: String = typed.chars().filter(|character| !character.is_whitespace()).collect();
        self.totp("")?.check(&digits, now.as_seconds())
    }

    /// A QR code for apps, labelled with the account.
    pub(crate) fn qr_code(&self, account: &str) -> Option<Markup> {
        let code = QrCode::new(self.totp(account)?.to_url().ok()?).ok()?;
        let picture = code.render::<svg::Color<'_>>().min_dimensions(220, 220).build();
        // HTML does not allow the XML declaration.
        let picture = picture.find("<svg").map(|start| picture[start..].to_owned())?;
        Some(PreEscaped(picture))
    }

    fn totp(&self, account: &str) -> Option<Totp> {
        let builder = Builder::new().with_secret(self.0.clone()).with_skew(SKEW_STEPS).with_step_duration(STEP_SECONDS);
        builder.with_issuer(Some(ISSUER)).with_account_name(account).build().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With RFC 6238's key. The codes there have eight digits; apps show the last six.
    #[test]
    fn codes_match_the_standard() {
        let key = AuthenticatorKey(b"12345678901234567890".to_vec());
        assert_eq!(AuthenticatorKey::parse(&key.text()).unwrap().0, key.0);
        for (seconds, code) in [(59, "287082"), (1_111_111_109, "081804"), (1_234_567_890, "005924")] {
            let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
            assert_eq!(key.step_of(code, at(seconds)), Some(seconds / 30), "{code}");
            assert_eq!(key.step_of(&format!("{} {}", &code[..3], &code[3..]), at(seconds)), Some(seconds / 30));
            assert_eq!(key.step_of(code, at(seconds + 30)), Some(seconds / 30), "a clock that is behind");
            assert_eq!(key.step_of(code, at(seconds + 90)), None, "too late");
        }
        for typed in ["", "28708", "2870822", "abcdef", "２８７０８２"] {
            assert_eq!(key.step_of(typed, Timestamp::from_millis(59_000)), None, "{typed:?}");
        }
        for text in ["", "A", "GEZDGNBVGY3TQOJQ", "not base32 at all !!"] {
            assert!(AuthenticatorKey::parse(text).is_none(), "{text:?}");
        }
        assert!(key.qr_code("ada@example.com").unwrap().0.starts_with("<svg"));
    }
}
