//! Callers that hang up at every await point: pages, forms, the playground and a completion are sent over an in-memory
//! connection, which is dropped at each point where it waits, on both databases. After each drop, no permit, no lease and
//! no byte of a body is held, PostgreSQL does no work for the caller, and the next caller is served immediately. In the
//! end every row is there exactly once.
//!
//! Random times in the black-box suite once found what is tested here systematically: a hang-up during `BEGIN` left the
//! transaction open, with the lock of all changes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Api, ApiAddress, ApiSettings};
use chat::{ApiKey, KeyName, Timestamp};
use console::{Console, ConsoleSettings, SIGN_IN_OUTCOMES, SignInCounters};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use runtimes::{Pool, PoolSettings};
use store::{
    Database, LedgerWriter, NewAccount, NewKey, Origin, Period, PersonName, PostgresSettings, Proof, RequestQuery,
    Role, Step, Store, UsageQuery, Viewer,
};
use testbed::{Behaviour, Cluster, DatabaseWatch, FakeRuntime, chat_body, drop_when_pending};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use transport::{BaseUrl, ClientConnection, Site};

/// Much longer than `PROMPTLY`, so that a test that waits for it fails.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(30);
const PROMPTLY: Duration = Duration::from_secs(8);
const CONNECTIONS: usize = 2;
const DAY: Duration = Duration::from_secs(86_400);
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// More than any response has.
const PIPE_BYTES: usize = 1024 * 1024;

#[tokio::test]
async fn every_request_can_be_dropped_at_every_await_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::Sqlite(folder.path().join("test.db"));
    World::new(&database).await.drop_everything(None).await;
}

#[tokio::test]
async fn every_request_can_be_dropped_at_every_await_on_postgres() {
    let url = Cluster::shared().create_database();
    let watch = DatabaseWatch::new(&url).await;
    let settings = PostgresSettings { url: url.parse().unwrap(), connections: CONNECTIONS, timeout: DATABASE_TIMEOUT };
    World::new(&Database::Postgres(settings)).await.drop_everything(Some(watch)).await;
}

/// API and console over one database, with a signed-in person.
struct World {
    store: Arc<Store>,
    writer: LedgerWriter,
    pool: Arc<Pool>,
    api: Arc<Api>,
    api_worker: api::Worker,
    console_worker: console::Worker,
    key: ApiKey,
    session: String,
    /// The CSRF token of that session.
    form_token: String,
    _runtime: FakeRuntime,
}

impl World {
    async fn new(database: &Database) -> Self {
        let store = Arc::new(Store::open(database).await.unwrap());
        let (ledger, writer) = store.start_ledger(30 * DAY).unwrap();
        let runtime = FakeRuntime::start(Behaviour::EchoAfter(Duration::from_millis(1)));
        let urls = vec![runtime.url().parse().unwrap()];
        let pool = Pool::new(PoolSettings { urls, key: None, timeout: Duration::from_secs(60), guard: true });
        let settings = ApiSettings {
            address: ApiAddress::from_base_url("http://localhost/v1").unwrap(),
            max_requests: 4,
            max_body_memory: 4 * 1024 * 1024,
            body_idle_timeout: Duration::from_secs(60),
            request_log: None,
            tracer: None,
        };
        let api = Api::new(settings, store.clone(), ledger, Some(pool.clone()), None);
        let base_url = BaseUrl::parse_root(&format!("http://{HOST}")).unwrap();
        let settings = ConsoleSettings {
            host: base_url.host,
            origin: base_url.origin,
            api_base_url: "http://localhost/v1".into(),
            api_description: "{}".into(),
            passwords: true,
            keys_per_person: 100,
            identity_provider: None,
            webhook: false,
        };
        let sign_ins = Arc::new(SignInCounters::new(SIGN_IN_OUTCOMES));
        let console = Console::new(settings, store.clone(), api.clone(), sign_ins);

        let operator = Viewer::operator();
        let link = store.links().invite(operator.admin().unwrap(), Role::Admin, "Ada", DAY).await.unwrap();
        let ada = NewAccount {
            email: "ada@example.com".parse().unwrap(),
            name: PersonName::parse("Ada").unwrap(),
            password: "hash".into(),
        };
        let ada = store.links().use_link(&link, &ada, "").await.unwrap();
        let origin = Origin { address: ADDRESS.to_string(), agent: "a test".into() };
        let begun = store.sessions().begin(ada, &origin, Proof::Password("hash")).await.unwrap();
        let new = NewKey { name: KeyName::parse("k").unwrap(), completions: true, expires_at: None, project: None };
        let key = store.keys().create(&begun.session.viewer, new, u64::MAX).await.unwrap();
        let mut world = Self {
            api_worker: api.worker(),
            console_worker: console.worker(),
            session: begun.token.reveal().to_owned(),
            form_token: String::new(),
            store,
            writer,
            pool,
            api,
            key,
            _runtime: runtime,
        };
        let page = world.respond(&world.console_request("GET", "/keys", "")).await;
        let token = page.split_once("name=\"token\" value=\"").unwrap().1;
        world.form_token = token.split_once('"').unwrap().0.to_owned();
        world
    }

    fn console_request(&self, method: &str, target: &str, body: &str) -> SiteRequest {
        let headers = format!(
            "Host: {HOST}\r\nCookie: adriaticum_session={}\r\nx-form-token: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n",
            self.session, self.form_token
        );
        SiteRequest::new(Sites::Console, method, target, &headers, body)
    }

    fn form(&self, target: &str, fields: &str) -> SiteRequest {
        self.console_request("POST", target, &format!("{fields}&token={}", self.form_token))
    }

    fn requests(&self) -> Vec<SiteRequest> {
        let key = self.key.id();
        let pages = ["/", "/keys", &format!("/keys/{key}"), &format!("/keys/{key}/revoke"), "/usage", "/usage.csv"];
        let more = ["/requests", "/requests.csv", "/team", "/audit", "/account", "/playground", "/sign-in"];
        let pages = pages.into_iter().chain(more);
        let mut all: Vec<_> = pages.map(|page| self.console_request("GET", page, "")).collect();
        all.push(self.form("/keys", "name=new&completions=yes&life="));
        all.push(self.form(&format!("/keys/{key}/rename"), "name=renamed"));
        all.push(self.form("/account/name", "name=Ada"));
        all.push(self.form("/account/sessions/end-others", ""));
        all.push(self.form("/team/invitations", "note=Bob&role=developer&life=7d"));
        all.push(self.console_request("POST", "/playground", &chat_body("Hello!")));
        let headers = format!(
            "Host: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
            self.key.reveal()
        );
        all.push(SiteRequest::new(Sites::Api, "POST", "/v1/chat/completions", &headers, &chat_body("Hello!")));
        all
    }

    /// Sends a request, and drops the connection after it was pending `times` times. Returns the response if it is complete
    /// before.
    async fn send(&self, request: &SiteRequest, times: usize, pause: Duration) -> Option<String> {
        match request.site {
            Sites::Api => exchange::<Api>(&self.api_worker, request, times, pause).await,
            Sites::Console => exchange::<Console>(&self.console_worker, request, times, pause).await,
        }
    }

    async fn respond(&self, request: &SiteRequest) -> String {
        let responded = tokio::time::timeout(PROMPTLY, self.send(request, usize::MAX, Duration::ZERO)).await;
        responded.unwrap_or_else(|_| panic!("no response: {}", request.line)).unwrap()
    }

    async fn drop_everything(self, watch: Option<DatabaseWatch>) {
        let mut dropped = 0;
        for request in self.requests() {
            for pause in [Duration::ZERO, Duration::from_millis(2)] {
                for times in 1.. {
                    let place = format!("{}, dropped when pending for the {times}. time", request.line);
                    if let Some(response) = self.send(&request, times, pause).await {
                        let is_done = response.starts_with("HTTP/1.1 200 ") || response.starts_with("HTTP/1.1 303 ");
                        assert!(is_done, "{}: {response}", request.line);
                        break;
                    }
                    dropped += 1;
                    self.assert_nothing_is_left(&place).await;
                    if let Some(watch) = &watch {
                        watch.assert_nothing_is_left(&place, PROMPTLY).await;
                        let open = watch.connections().await;
                        assert!(open <= CONNECTIONS as i64 + 3, "{open} connections after {place}");
                    }
                }
            }
            // A change fails if a lock is still held.
            let next = self.respond(&self.form("/account/name", "name=Ada")).await;
            assert!(next.starts_with("HTTP/1.1 303 "), "after {}: {next}", request.line);
        }
        println!("{dropped} requests were dropped");
        // Pages never wait for SQLite.
        assert!(dropped > if watch.is_some() { 2 * self.requests().len() } else { 0 });
        self.assert_every_row_is_there_once().await;
    }

    async fn assert_nothing_is_left(&self, after: &str) {
        let began = Instant::now();
        loop {
            let leases: usize = self.pool.status().iter().map(|member| member.in_flight).sum();
            let held = (self.api.in_flight().0, self.api.body_memory().0, leases);
            if held == (0, 0, 0) {
                return;
            }
            assert!(began.elapsed() < PROMPTLY, "after {after}: permits, bytes and leases {held:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn assert_every_row_is_there_once(self) {
        let status = self.pool.status();
        assert!(status.iter().all(|member| member.available), "{status:?}");
        tokio::task::spawn_blocking(|| self.writer.stop()).await.unwrap();
        let operator = Viewer::operator();
        let all = RequestQuery { limit: 10_000, ..RequestQuery::default() };
        let rows = self.store.usage().requests(&operator, &all).await.unwrap();
        for row in &rows {
            let outcome = (row.status, row.code.as_deref());
            assert!([(200, None), (499, Some("client_closed"))].contains(&outcome), "{row:?}");
        }
        let ids: HashSet<_> = rows.iter().map(|row| row.request_id).collect();
        assert_eq!(ids.len(), rows.len());
        let everything = UsageQuery {
            period: Period::since(Timestamp::default()),
            key: None,
            step: Step::Hour,
            person: None,
            group: None,
        };
        let report = self.store.usage().report(&operator, &everything).await.unwrap().unwrap();
        assert_eq!(report.totals.requests, rows.len() as u64);
        let closed = rows.iter().filter(|row| row.status == 499).count();
        println!("{} rows, {closed} of them from callers that hung up", rows.len());
        assert!(closed > 0);
    }
}

const HOST: &str = "console.example.com";

#[derive(Clone, Copy)]
enum Sites {
    Api,
    Console,
}

struct SiteRequest {
    site: Sites,
    line: String,
    bytes: Vec<u8>,
}

impl SiteRequest {
    fn new(site: Sites, method: &str, target: &str, headers: &str, body: &str) -> Self {
        let line = format!("{method} {target}");
        let length = body.len();
        let bytes = format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        Self { site, line, bytes: bytes.into() }
    }
}

/// Serves one request over an in-memory connection.
async fn exchange<S: Site>(worker: &S::Worker, request: &SiteRequest, times: usize, pause: Duration) -> Option<String> {
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    client.write_all(&request.bytes).await.unwrap();
    let service = service_fn(async |request: Request<Incoming>| {
        let connection = ClientConnection::without_listener(ADDRESS);
        Ok::<_, Infallible>(S::handle(worker, connection, request).await)
    });
    let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(server), service);
    drop_when_pending(times, pause, connection).await?.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    Some(response)
}
