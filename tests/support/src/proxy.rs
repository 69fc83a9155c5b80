//! The proxy: every request passes a rule that says what becomes of it.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::{self, Message};

/// How long anything here waits for what a test does.
const DEADLINE: Duration = Duration::from_secs(60);

/// One request, as a rule sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number among all requests since the rule was set, from 1.
    pub ordinal: usize,
    /// Its number among the writes (PUT, POST, DELETE) since the rule was set, from 1; none for a read.
    pub write: Option<usize>,
    /// How often exactly this operation (method, path and query) has come since the rule was set, this time included.
    pub attempt: usize,
    /// The method.
    pub method: String,
    /// The decoded path, `/bucket/key`.
    pub path: String,
    /// The query as sent.
    pub query: String,
    /// Whether it asks to be done only where nothing is there yet (`If-None-Match`).
    pub conditional: bool,
    /// The access key that signed it, or the bearer token that it carries.
    pub signed_by: String,
    /// The keys that a bulk delete (`POST /bucket?delete`) names, without the bucket.
    pub keys: Vec<String>,
}

impl Request {
    /// Whether it is a write.
    pub fn is_write(&self) -> bool {
        self.write.is_some()
    }
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Action {
    /// It is forwarded.
    Pass,
    /// The client process is killed, and the request is not forwarded.
    KillBefore,
    /// It is forwarded, the client process is killed, and nobody hears the answer.
    KillAfter,
    /// It is not forwarded; this status is the answer, with S3's body for it.
    Status(u16),
    /// It is forwarded, and this status is the answer instead of the server's.
    StatusAfter(u16),
    /// It is not forwarded; the connection is reset.
    Reset,
    /// It is forwarded, and the connection is reset instead of an answer.
    ResetAfter,
    /// It is forwarded after this time.
    Delay(Duration),
    /// It is held until the test lets it go, and then forwarded.
    Hold(Gate),
    /// It is forwarded, and the answer held until the test lets it go.
    HoldAnswer(Gate),
    /// A bulk delete is forwarded, and of the keys with this in them the answer says that they failed.
    KeysFail(String),
}

type Rule = Box<dyn FnMut(&Request) -> Action + Send>;

/// Where a held request waits. Dropped, it lets everything go.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    held: Mutex<(Vec<Request>, bool)>,
    changed: Condvar,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until a request is held, and returns it.
    ///
    /// # Panics
    /// When none came within a minute.
    #[track_caller]
    pub fn arrived(&self) -> Request {
        let (held, _) = self.wait(|(held, _)| !held.is_empty());
        held.first().cloned().expect("no request arrived at the gate within a minute")
    }

    /// Lets everything through that is held here, and all that comes.
    pub fn open(&self) {
        lock(&self.0.held).1 = true;
        self.0.changed.notify_all();
    }

    fn hold(&self, request: &Request) {
        lock(&self.0.held).0.push(request.clone());
        self.0.changed.notify_all();
        drop(self.wait(|(_, open)| *open));
    }

    fn wait(&self, until: impl Fn(&(Vec<Request>, bool)) -> bool) -> (Vec<Request>, bool) {
        let guard = lock(&self.0.held);
        let waited = self.0.changed.wait_timeout_while(guard, DEADLINE, |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Book {
    log: Vec<Request>,
    writes: usize,
    attempts: HashMap<(String, String, String), usize>,
    rule: Option<Rule>,
}

struct Shared {
    upstream: SocketAddr,
    book: Mutex<Book>,
    client: Mutex<Option<u32>>,
    client_set: Condvar,
    /// The client was killed: whatever it may still have sent is not heard.
    dead: AtomicBool,
    stopped: AtomicBool,
    busy: AtomicUsize,
    /// Every object that is not Squire's own is said to have been written long ago.
    ages: bool,
}

/// A loopback proxy in front of an S3 server. Host header and path are forwarded as they came, so signatures stay valid. It ends
/// when this is dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Proxy {
    /// Listens on a free port in front of `http://host:port`.
    ///
    /// # Panics
    /// When the endpoint is none, or no port is free.
    pub fn start(endpoint: &str) -> Self {
        Self::with(endpoint, false)
    }

    /// The same; of every object that is not Squire's own the client hears that it was written long ago, which no test can wait for.
    ///
    /// # Panics
    /// As [`Proxy::start`].
    pub fn ageing(endpoint: &str) -> Self {
        Self::with(endpoint, true)
    }

    fn with(endpoint: &str, ages: bool) -> Self {
        let upstream = endpoint.trim_start_matches("http://").trim_end_matches('/').parse().expect("http://IP:PORT");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            upstream,
            book: Mutex::default(),
            client: Mutex::default(),
            client_set: Condvar::new(),
            dead: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            ages,
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let shared = accepting.clone();
                std::thread::spawn(move || {
                    // A connection that breaks is the client's trouble.
                    let _ = Connection::new(shared, client).and_then(|mut c| c.run());
                });
            }
        });
        Self { shared, address }
    }

    /// What a client takes for the server.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on this rule decides; the counts and the log begin anew.
    pub fn set(&self, rule: impl FnMut(&Request) -> Action + Send + 'static) {
        *lock(&self.shared.book) = Book { rule: Some(Box::new(rule)), ..Book::default() };
        *lock(&self.shared.client) = None;
        self.shared.dead.store(false, Ordering::SeqCst);
    }

    /// From now on everything passes; the counts and the log begin anew.
    pub fn pass(&self) {
        self.set(|_| Action::Pass);
    }

    /// Whom a rule may kill: a child process of the test.
    pub fn client_is(&self, pid: u32) {
        *lock(&self.shared.client) = Some(pid);
        self.shared.client_set.notify_all();
    }

    /// Whether the client was killed since the rule was set.
    pub fn killed(&self) -> bool {
        self.shared.dead.load(Ordering::SeqCst)
    }

    /// Every request since the rule was set, in the order of their arrival.
    pub fn log(&self) -> Vec<Request> {
        lock(&self.shared.book).log.clone()
    }

    /// The writes since the rule was set.
    pub fn writes(&self) -> Vec<Request> {
        self.log().into_iter().filter(Request::is_write).collect()
    }

    /// Waits until no request is on its way any more: what a killed client had sent has reached the server or never will.
    ///
    /// # Panics
    /// When that takes over a minute.
    pub fn settle(&self) {
        let deadline = Instant::now() + DEADLINE;
        while self.shared.busy.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < deadline, "requests are still on their way");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the listener, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn decide(&self, method: &str, target: &str, message: &Message) -> (Request, Action) {
        let body = &message.body;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut book = lock(&self.book);
        let is_write = matches!(method, "PUT" | "POST" | "DELETE");
        book.writes += usize::from(is_write);
        let keys = if method == "POST" { http::deleted_keys(body) } else { Vec::new() };
        // Bulk deletes differ in their bodies alone.
        let operation = (method.to_string(), path.to_string(), format!("{query} {}", keys.join(" ")));
        let attempt = book.attempts.entry(operation).or_default();
        *attempt += 1;
        let request = Request {
            attempt: *attempt,
            ordinal: book.log.len() + 1,
            write: is_write.then_some(book.writes),
            method: method.to_string(),
            path: percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned(),
            query: query.to_string(),
            conditional: message.header("if-none-match").is_some(),
            signed_by: http::signer(message.header("authorization").unwrap_or_default()),
            keys,
        };
        book.log.push(request.clone());
        let action = book.rule.as_mut().map_or(Action::Pass, |rule| rule(&request));
        (request, action)
    }

    fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let client = lock(&self.client);
        let waited = self.client_set.wait_timeout_while(client, DEADLINE, |client| client.is_none());
        let pid = *waited.unwrap_or_else(PoisonError::into_inner).0;
        let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        // A client that has ended by itself has nothing more to lose.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
    }
}

/// Counts a request as being on its way.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Connection {
    shared: Arc<Shared>,
    client: BufReader<TcpStream>,
    server: Option<BufReader<TcpStream>>,
}

/// What happens after a request.
enum Next {
    KeepAlive,
    Close,
    Reset,
}

impl Connection {
    fn new(shared: Arc<Shared>, client: TcpStream) -> io::Result<Self> {
        client.set_nodelay(true)?;
        Ok(Self { shared, client: BufReader::new(client), server: None })
    }

    fn run(&mut self) -> io::Result<()> {
        while let Some(request) = Message::request(&mut self.client)? {
            let shared = self.shared.clone();
            let _busy = Busy::new(&shared.busy);
            match self.serve(&request)? {
                Next::KeepAlive => {}
                Next::Close => break,
                Next::Reset => {
                    let client = self.client.get_ref();
                    socket2::SockRef::from(client).set_linger(Some(Duration::ZERO))?;
                    return Ok(());
                }
            }
        }
        self.client.get_ref().shutdown(Shutdown::Both)
    }

    fn serve(&mut self, message: &Message) -> io::Result<Next> {
        if self.shared.dead.load(Ordering::SeqCst) {
            return Ok(Next::Close);
        }
        let (method, target) = message.method_and_target();
        let (request, action) = self.shared.decide(&method, &target, message);
        match action {
            Action::KillBefore => {
                self.shared.kill();
                return Ok(Next::Close);
            }
            Action::Status(status) => {
                self.client.get_mut().write_all(&http::failure(status, &method))?;
                return Ok(Next::KeepAlive);
            }
            Action::Reset => return Ok(Next::Reset),
            Action::Delay(time) => std::thread::sleep(time),
            Action::Hold(gate) => gate.hold(&request),
            action => return self.forward_and(message, &method, &request, action),
        }
        self.forward_and(message, &method, &request, Action::Pass)
    }

    fn forward_and(&mut self, message: &Message, method: &str, request: &Request, action: Action) -> io::Result<Next> {
        let mut answer = self.forward(message, method)?;
        if self.shared.ages && method == "GET" && request.query.contains("list-type=") {
            answer.age_listing();
        } else if self.shared.ages && !http::is_ours(&request.path) {
            answer.age();
        }
        match action {
            Action::KillAfter => {
                self.shared.kill();
                return Ok(Next::Close);
            }
            Action::ResetAfter => return Ok(Next::Reset),
            Action::StatusAfter(status) => {
                self.client.get_mut().write_all(&http::failure(status, method))?;
                return Ok(Next::KeepAlive);
            }
            Action::HoldAnswer(gate) => gate.hold(request),
            Action::KeysFail(part) => {
                self.client.get_mut().write_all(&http::bulk_answer(&request.keys, |key| key.contains(&part)))?;
                return Ok(Next::KeepAlive);
            }
            _ => {}
        }
        let client = self.client.get_mut();
        client.write_all(&answer.head)?;
        client.write_all(&answer.body)?;
        if answer.closes() {
            self.server = None;
            return Ok(Next::Close);
        }
        Ok(Next::KeepAlive)
    }

    fn forward(&mut self, message: &Message, method: &str) -> io::Result<Message> {
        // A kept connection may have been closed by the server since: once more on a fresh one, if no answer had begun.
        if let Some(server) = &mut self.server {
            if let Ok(answer) = exchange(server, message, method) {
                return Ok(answer);
            }
            self.server = None;
        }
        let stream = TcpStream::connect(self.shared.upstream)?;
        stream.set_nodelay(true)?;
        exchange(self.server.insert(BufReader::new(stream)), message, method)
    }
}

fn exchange(server: &mut BufReader<TcpStream>, message: &Message, method: &str) -> io::Result<Message> {
    let out = server.get_mut();
    out.write_all(&message.head)?;
    out.write_all(&message.body)?;
    Message::response(server, method)
}
