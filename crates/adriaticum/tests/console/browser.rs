//! A real browser: headless chromium over its DevTools protocol. One process serves all tests; every `Page` has a
//! separate browser context with separate cookies.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

use crate::ADRIATICUM;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

struct Browser {
    socket_url: String,
    _profile: TempDir,
    _child: Mutex<Child>,
}

impl Browser {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Browser> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Started through a shell that ends it when this process ends for any reason.
    fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let script = "chromium \"$@\" & browser=$!; cat >/dev/null; kill $browser";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-port=0", "--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let socket_url = lines
            .find_map(|line| line.unwrap().strip_prefix("DevTools listening on ").map(str::to_owned))
            .expect("chromium prints its address");
        std::thread::spawn(move || lines.for_each(drop)); // so that its pipe never fills up
        Self { socket_url, _profile: profile, _child: Mutex::new(child) }
    }
}

/// A browser context with one open page.
pub(crate) struct Page {
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: String,
    next: u64,
    origin: String,
    events: VecDeque<Value>,
    errors: Vec<String>,
}

impl Page {
    /// A context without cookies; paths are relative to `origin`.
    pub(crate) fn open(origin: &str) -> Self {
        let (socket, _) = tungstenite::connect(&Browser::shared().socket_url).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(ADRIATICUM.timeout())).unwrap();
        }
        let mut page = Self {
            socket,
            session: String::new(),
            next: 0,
            origin: origin.into(),
            events: VecDeque::new(),
            errors: Vec::new(),
        };
        let context = page.command("Target.createBrowserContext", json!({ "disposeOnDetach": true }));
        let target = page.command(
            "Target.createTarget",
            json!({ "url": "about:blank", "browserContextId": context["browserContextId"] }),
        );
        let attached =
            page.command("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        page.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.command(&format!("{domain}.enable"), json!({}));
        }
        page.command("Page.setLifecycleEventsEnabled", json!({ "enabled": true }));
        page.desktop();
        page
    }

    pub(crate) fn desktop(&mut self) {
        self.resize(1280, 900, false);
    }

    pub(crate) fn phone(&mut self) {
        self.resize(390, 844, true);
    }

    fn resize(&mut self, width: u32, height: u32, mobile: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.command("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub(crate) fn set_theme(&mut self, name: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": name }] });
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// Limits the download rate from now on.
    pub(crate) fn slow_network(&mut self, bytes_per_second: u32) {
        self.command("Network.enable", json!({}));
        let conditions =
            json!({ "offline": false, "latency": 0, "downloadThroughput": bytes_per_second, "uploadThroughput": -1 });
        self.command("Network.emulateNetworkConditions", conditions);
    }

    pub(crate) fn set_time_zone(&mut self, name: &str) {
        self.command("Emulation.setTimezoneOverride", json!({ "timezoneId": name }));
    }

    pub(crate) fn disable_scripts(&mut self) {
        self.command("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    }

    /// A virtual passkey device whose user approves every prompt.
    pub(crate) fn add_authenticator(&mut self) {
        self.command("WebAuthn.enable", json!({}));
        let options = json!({
            "protocol": "ctap2", "transport": "internal", "hasResidentKey": true, "hasUserVerification": true,
            "isUserVerified": true, "automaticPresenceSimulation": true,
        });
        self.command("WebAuthn.addVirtualAuthenticator", json!({ "options": options }));
    }

    /// Changes the origin that paths are relative to.
    pub(crate) fn set_origin(&mut self, origin: &str) {
        self.origin = origin.to_owned();
    }

    /// Opens a path and waits until the page is loaded.
    pub(crate) fn go(&mut self, path: &str) {
        let url = format!("{}{path}", self.origin);
        self.events.clear();
        let gone = self.command("Page.navigate", json!({ "url": url }));
        assert!(gone["errorText"].is_null(), "{path}: {gone}");
        self.wait_for_load(|loader| *loader == gone["loaderId"]);
    }

    /// Opens a path repeatedly until the page contains `part`.
    pub(crate) fn go_until(&mut self, path: &str, part: &str) {
        let began = Instant::now();
        self.go(path);
        while !self.text().contains(part) && began.elapsed() < ADRIATICUM.timeout() {
            std::thread::sleep(POLL_INTERVAL);
            self.go(path);
        }
        self.assert_says(part);
    }

    /// Waits until a document is loaded. Its loader id distinguishes it from an earlier document.
    fn wait_for_load(&mut self, expected: impl Fn(&Value) -> bool) {
        let loaded = |event: &Value| {
            event["method"] == "Page.lifecycleEvent"
                && event["params"]["name"] == "load"
                && expected(&event["params"]["loaderId"])
        };
        let began = Instant::now();
        while !self.events.iter().any(loaded) {
            assert!(began.elapsed() < ADRIATICUM.timeout(), "the page does not load");
            self.receive();
        }
        self.events.clear();
    }

    /// The value of a JavaScript expression.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// An error if the page navigated away meanwhile.
    fn try_eval(&mut self, expression: &str) -> Result<Value, Value> {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let response = self.try_command("Runtime.evaluate", asked)?;
        assert!(response["exceptionDetails"].is_null(), "{expression}: {response}");
        Ok(response["result"]["value"].clone())
    }

    /// The visible text of the page.
    pub(crate) fn text(&mut self) -> String {
        self.eval("document.body.innerText").as_str().unwrap().to_owned()
    }

    pub(crate) fn assert_says(&mut self, part: &str) {
        let text = self.text();
        assert!(text.contains(part), "{part:?} is not on the page:\n{text}");
    }

    /// Types into a field.
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        let script = format!(
            "(() => {{ const field = document.querySelector({}); field.focus(); field.value = ''; }})()",
            json!(selector)
        );
        self.eval(&script);
        self.insert(text);
    }

    /// Types or pastes where the focus is.
    pub(crate) fn insert(&mut self, text: &str) {
        self.command("Input.insertText", json!({ "text": text }));
    }

    /// Sets the text of a field by script and notifies the page. The text may contain anything.
    pub(crate) fn put(&mut self, selector: &str, text: &str) {
        self.eval(&format!(
            "(() => {{ const field = document.querySelector({}); field.value = {};
                field.dispatchEvent(new InputEvent('input', {{ bubbles: true }})); }})()",
            json!(selector),
            json!(text)
        ));
    }

    /// Sets the value of a field that is not typed, such as a list.
    pub(crate) fn choose(&mut self, selector: &str, value: &str) {
        let script = format!(
            "(() => {{ const field = document.querySelector({}); field.value = {}; return field.value; }})()",
            json!(selector),
            json!(value)
        );
        assert_eq!(self.eval(&script), value, "{selector} cannot have that value");
    }

    /// Clicks on an element that leads to another page, and waits for it to load.
    pub(crate) fn click(&mut self, selector: &str) {
        let tree = self.command("Page.getFrameTree", json!({}));
        self.events.clear();
        self.press(selector);
        self.wait_for_load(|loader| *loader != tree["frameTree"]["frame"]["loaderId"]);
    }

    /// Clicks on an element that stays on the page.
    pub(crate) fn press(&mut self, selector: &str) {
        let found = self.eval(&format!(
            "(() => {{ const found = document.querySelector({}); found?.click(); return !!found; }})()",
            json!(selector)
        ));
        assert_eq!(found, true, "{selector} is not on the page:\n{}", self.text());
    }

    /// Presses a key on the keyboard.
    pub(crate) fn key(&mut self, name: &str) {
        self.key_with(name, 0);
    }

    /// Presses a key together with Control.
    pub(crate) fn control_key(&mut self, name: &str) {
        self.key_with(name, 2);
    }

    fn key_with(&mut self, name: &str, modifiers: u8) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": name, "code": name, "modifiers": modifiers });
            self.command("Input.dispatchKeyEvent", event);
        }
    }

    /// Waits until an expression is true, also across a navigation.
    pub(crate) fn wait_until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.try_eval(&format!("!!({expression})")) != Ok(true.into()) {
            assert!(began.elapsed() < ADRIATICUM.timeout(), "never true: {expression}\n{}", self.text());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub(crate) fn path(&mut self) -> String {
        self.eval("location.pathname").as_str().unwrap().to_owned()
    }

    /// The value of a cookie, also of one that scripts cannot read.
    pub(crate) fn cookie(&mut self, name: &str) -> String {
        let cookies = self.command("Network.getCookies", json!({}));
        let found = cookies["cookies"].as_array().unwrap().iter().find(|cookie| cookie["name"] == name).cloned();
        found.expect("a cookie of that name")["value"].as_str().unwrap().to_owned()
    }

    /// A PNG of the whole page.
    pub(crate) fn screenshot(&mut self, file: &Path) {
        let asked = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.command("Page.captureScreenshot", asked);
        std::fs::write(file, BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()).unwrap();
    }

    /// Script errors and policy violations since the last call.
    pub(crate) fn errors(&mut self) -> Vec<String> {
        self.eval("0"); // events before this call have arrived by now
        std::mem::take(&mut self.errors)
    }

    fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.try_command(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_command(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.next += 1;
        let number = self.next;
        let mut message = json!({ "id": number, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            if let Some(mut response) = self.receive().filter(|response| response["id"] == number) {
                let error = response["error"].take();
                return if error.is_null() { Ok(response["result"].take()) } else { Err(error) };
            }
        }
    }

    /// Receives one message: a response is returned, an event is kept.
    fn receive(&mut self) -> Option<Value> {
        let Message::Text(text) = self.socket.read().expect("the browser responds") else { return None };
        let message: Value = serde_json::from_str(&text).unwrap();
        if !message["id"].is_null() {
            return Some(message);
        }
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(message["params"].to_string()),
            // A failed request is not an error of the page.
            Some("Log.entryAdded")
                if message["params"]["entry"]["level"] == "error"
                    && message["params"]["entry"]["source"] != "network" =>
            {
                self.errors.push(message["params"]["entry"].to_string());
            }
            _ => self.events.push_back(message),
        }
        None
    }
}
