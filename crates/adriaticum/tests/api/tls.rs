//! TLS listeners: both protocols, certificates that are replaced while the service runs, and clients without TLS.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::Version;
use hyper::body::Bytes;
use rustls::ClientConfig;
use testbed::{
    Behaviour, CertificateAuthority, CertificateFiles, Connection, FakeRuntime, Http2Client, Request, Response,
    Service, ServiceBuilder, TlsClient, chat_body, replace_file, wait_for,
};

use crate::ADRIATICUM;

const BOTH: &[&str] = &["h2", "http/1.1"];

/// The settings for these certificates.
fn settings(pairs: &[&CertificateFiles]) -> [(&'static str, String); 4] {
    let list = |file: fn(&CertificateFiles) -> &std::path::Path| {
        pairs.iter().map(|pair| file(pair).to_str().unwrap()).collect::<Vec<_>>().join(",")
    };
    [
        ("tls.certificate", list(|pair| &pair.certificate)),
        ("tls.key", list(|pair| &pair.key)),
        ("api.base_url", "https://localhost/v1".into()),
        ("console.base_url", "https://console.localhost".into()),
    ]
}

fn secured(setup: ServiceBuilder, pairs: &[&CertificateFiles]) -> ServiceBuilder {
    settings(pairs).iter().fold(setup, |setup, (name, value)| setup.set(name, value))
}

fn connect(service: &Service, client: &Arc<ClientConfig>) -> TlsClient {
    TlsClient::connect(service.address(), "localhost", client).unwrap()
}

fn chat(key: &str) -> hyper::Request<Full<Bytes>> {
    let mut request = Http2Client::request(key, "").map(|_| Full::from(chat_body("hello")));
    request.headers_mut().insert("host", "localhost".parse().unwrap());
    request
}

#[test]
fn completions_go_over_both_protocols() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let (pair, certificate) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service_with(&[&runtime]), &[&pair]).start();
    let key = service.key();
    let cases: [(&[&str], _); 4] = [
        (BOTH, Version::HTTP_2),
        (&["h2"], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ];
    for (offered, expected) in cases {
        let mut connection = connect(&service, &authority.client(offered));
        assert_eq!(connection.certificate, certificate);
        for _ in 0..3 {
            let (version, response) = connection.send(chat(&key));
            assert_eq!(version, expected, "{offered:?}");
            assert_eq!(response.completion().content, "hello");
        }
        connection.send(chat("nonsense")).1.expect_error("invalid_api_key");
    }
    assert_eq!(service.get_ops("/healthz"), (200, "ok\n".into()), "plain HTTP, as before");
}

#[test]
fn the_console_speaks_tls_and_its_cookies_stay_there() {
    let authority = CertificateAuthority::generate();
    let (pair, _) = authority.issue("one", &["localhost", "console.localhost"]);
    let service = secured(ADRIATICUM.service(), &[&pair]).start();
    let mut connection =
        TlsClient::connect(service.console_address(), "console.localhost", &authority.client(&["http/1.1"])).unwrap();
    let request = hyper::Request::get("/sign-in").header("host", "console.localhost").body(Full::default()).unwrap();
    let (_, page) = connection.send(request);
    assert_eq!(page.status, 200);
    let cookie = page.header("set-cookie").unwrap();
    assert!(cookie.starts_with("__Host-") && cookie.contains("Secure"), "{cookie}");
}

#[test]
fn the_certificate_is_chosen_by_server_name() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let (first, for_all) = authority.issue("first", &["localhost"]);
    let (second, for_one) = authority.issue("second", &["console.localhost", "*.example.com"]);
    let service = secured(ADRIATICUM.service_with(&[&runtime]), &[&first, &second]).start();
    let client = authority.client(BOTH);
    for (name, certificate) in [("localhost", &for_all), ("console.localhost", &for_one), ("www.example.com", &for_one)]
    {
        let connection = TlsClient::connect(service.address(), name, &client).unwrap();
        assert_eq!(connection.certificate, *certificate, "{name}");
    }
    let stranger = TlsClient::connect(service.address(), "elsewhere.net", &client).err().unwrap();
    assert!(stranger.to_string().contains("not valid for name"), "{stranger}");
}

#[test]
fn a_new_certificate_is_served_to_the_next_connection() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let (pair, before) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service_with(&[&runtime]), &[&pair]).start();
    let key = service.key();
    let (client, old_fashioned) = (authority.client(BOTH), authority.client(&["http/1.1"]));
    let mut open = [connect(&service, &client), connect(&service, &old_fashioned)];
    open.iter_mut().for_each(|connection| drop(connection.send(chat(&key)).1.completion()));

    let (other, after) = authority.issue("other", &["localhost"]);
    pair.replace_with(&other);
    let served = || connect(&service, &authority.client(BOTH)).certificate;
    wait_for("the new certificate", || (served() == after).then_some(()));
    for connection in &mut open {
        assert_eq!(connection.certificate, before);
        connection.send(chat(&key)).1.completion();
    }
    assert!(!service.log().contains("cannot be used"), "{}", service.log());
}

#[test]
fn sighup_reloads_certificates_immediately() {
    let authority = CertificateAuthority::generate();
    let (pair, _) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service(), &[&pair]).start();
    let (other, after) = authority.issue("other", &["localhost"]);
    pair.replace_with(&other);
    service.reload();
    assert_eq!(connect(&service, &authority.client(BOTH)).certificate, after);
}

#[test]
fn an_unusable_certificate_does_not_replace_a_good_one() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let (pair, before) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service_with(&[&runtime]), &[&pair]).start();
    let key = service.key();
    let (other, after) = authority.issue("other", &["localhost"]);
    let refusals = || service.log().matches("the current ones stay in use").count();

    // Not a certificate; then a valid one for another key.
    for (expected, bytes) in [(1, b"nonsense".to_vec()), (2, std::fs::read(&other.certificate).unwrap())] {
        replace_file(&pair.certificate, &bytes);
        wait_for("the log line", || (refusals() == expected).then_some(()));
        let mut connection = connect(&service, &authority.client(BOTH));
        assert_eq!(connection.certificate, before);
        connection.send(chat(&key)).1.completion();
    }
    replace_file(&pair.key, &std::fs::read(&other.key).unwrap());
    wait_for("the pair", || (connect(&service, &authority.client(BOTH)).certificate == after).then_some(()));
    assert_eq!(refusals(), 2, "logged once each");
}

#[test]
fn unusable_certificates_are_reported_at_startup_and_by_check() {
    let authority = CertificateAuthority::generate();
    let (one, _) = authority.issue("one", &["localhost", "console.localhost"]);
    let (other, _) = authority.issue("other", &["localhost"]);
    let [crt, key, wrong] = [&one.certificate, &one.key, &other.key].map(|file| file.to_str().unwrap());
    for (certificate, key, base_url, says) in [
        (crt, wrong, "https://localhost/v1", "other.key: it is not the key of the certificate in"),
        (crt, crt, "https://localhost/v1", "one.crt: no items found"),
        (key, key, "https://localhost/v1", "one.key: there is no certificate in it"),
        ("/nowhere", key, "https://localhost/v1", "/nowhere"),
        (crt, "", "https://localhost/v1", "as many keys as certificates"),
        ("", key, "https://localhost/v1", "as many keys as certificates"),
        (crt, key, "http://localhost/v1", "api.base_url"),
    ] {
        let mut installation = ADRIATICUM.install();
        for (setting, value) in [
            ("tls.certificate", certificate),
            ("tls.key", key),
            ("api.base_url", base_url),
            ("console.base_url", "https://console.localhost"),
        ] {
            installation.set(setting, value);
        }
        for command in ["serve", "check"] {
            let output = installation.run(&[command]);
            assert_eq!(output.code, Some(1), "{output:?}");
            assert!(format!("{}{}", output.stdout, output.stderr).contains(says), "{says}: {output:?}");
        }
    }
}

#[test]
fn check_reports_expiry_and_names_of_certificates() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let in_days = |days: u64| {
        let then = std::time::SystemTime::now() + Duration::from_secs(days * 24 * 60 * 60);
        move |params: &mut rcgen::CertificateParams| params.not_after = then.into()
    };
    let names = &["localhost", "console.localhost"][..];
    let (good, _) = authority.issue_with("good", names, in_days(60));
    let (short, _) = authority.issue_with("short", names, in_days(13));
    let (old, _) = authority.issue_with("old", names, |params| params.not_after = rcgen::date_time_ymd(2020, 1, 2));
    let (narrow, _) = authority.issue_with("narrow", &["localhost"], in_days(60));
    for (pair, code, says) in [
        (&good, 0, "ok    tls       there is a certificate for console.localhost"),
        (&short, 0, "short.crt expires at"),
        (&old, 1, "old.crt expired at 2020-01-02T00:00:00Z"),
        (&narrow, 1, "no certificate covers console.localhost"),
    ] {
        let mut installation = ADRIATICUM.install();
        installation.set("runtime.urls", &runtime.url());
        settings(&[pair]).iter().for_each(|(name, value)| installation.set(name, value));
        let output = installation.run(&["check"]);
        assert_eq!(output.code, Some(code), "{output:?}");
        assert!(output.stdout.contains(says), "{says}: {output:?}");
    }
}

#[test]
fn plain_http_on_a_tls_port_gets_an_explanation() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let (pair, _) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service_with(&[&runtime]), &[&pair]).start();
    let mut connection = service.connect();
    let request = Request::chat(&service.key(), chat_body("hello"));
    let message = connection.send(request.bytes()).response().expect_error("invalid_request");
    assert!(message.contains("https://"), "{message}");
    connection.assert_closed();
    let over_http2: Vec<Response> =
        Http2Client::connect(service.address()).send(vec![Http2Client::request("", chat_body("hello"))]);
    over_http2[0].expect_error("invalid_request");
    assert_eq!(runtime.requests().len(), 0);
}

#[test]
fn a_handshake_must_end_in_time() {
    let authority = CertificateAuthority::generate();
    let (pair, _) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service(), &[&pair]).set("api.head_timeout", "300ms").start();
    // Nothing, and the start of a handshake.
    for start in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let began = Instant::now();
        let mut connection = Connection::connect(service.address());
        connection.send(start).read_to_end();
        let took = began.elapsed();
        assert!((Duration::from_millis(280)..Duration::from_secs(7)).contains(&took), "{took:?}");
    }
}

/// A client that does not use rustls.
#[test]
fn curl_is_served() {
    let (runtime, authority) = (FakeRuntime::start(Behaviour::Echo), CertificateAuthority::generate());
    let (pair, _) = authority.issue("one", &["localhost"]);
    let service = secured(ADRIATICUM.service_with(&[&runtime]), &[&pair]).start();
    let (key, port) = (service.key(), service.address().port());
    for (versions, expected) in [
        (&["--http1.1", "--tls-max", "1.2"][..], "1.1 200"),
        (&["--http1.1"], "1.1 200"),
        (&["--http2", "--tls-max", "1.2"], "2 200"),
        (&["--http2"], "2 200"),
    ] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{http_version} %{http_code}"])
            .args(versions)
            .arg("--cacert")
            .arg(authority.roots())
            .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
            .args(["--header", "Content-Type: application/json", "--header", &format!("Authorization: Bearer {key}")])
            .args(["--data", &chat_body("hello"), &format!("https://localhost:{port}/v1/chat/completions")]);
        let output = curl.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{versions:?}: {output:?}");
    }
}
