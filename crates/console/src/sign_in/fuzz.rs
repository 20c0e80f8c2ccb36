//! Fuzzing of the redirect after sign-in, which must stay on this host. Earlier code let a tab through (`/%09/…`), which
//! browsers drop, so that the rest named another host; this target finds that immediately.

use fuzzer::Target;
use url::Url;

use crate::sign_in::first_step::local_path;

#[test]
fn redirects() {
    let corpus = [
        "/",
        "/usage?range=7d",
        "/requests?key=4kQ9Zx7LmN2p&status=503",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "https://evil.example/",
    ];
    let words = [
        "/", "//", "\\", "\t", "\n", "\r", "\u{0}", "evil.example", ":", "@", "%2f", "%09", "..", ".", "https:",
        "javascript:", "?", "#", "\u{a0}", "／",
    ];
    let base = Url::parse("https://console.example/sign-in?next=x").expect("a URL");
    Target::new("redirects").corpus(corpus).dictionary(words).max_bytes(200).run_text(|target| {
        let path = local_path(target);
        // Resolved as browsers do.
        let url = base.join(path).expect("a URL that can be followed");
        assert_eq!(url.origin(), base.origin(), "{path:?} leads to {url}");
        assert!(path.starts_with('/') && (path == "/" || path == target), "{path:?}");
        assert!(http::HeaderValue::from_str(path).is_ok(), "{path:?}");
        (path == target, path.len().min(20), url.query().is_some())
    });
}
