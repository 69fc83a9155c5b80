//! A real nats-server on loopback, stopped by the id it was started with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a server may take to come up on a busy machine.
const UP: Duration = Duration::from_secs(30);

/// A running server with JetStream; it stops when this is dropped.
pub struct Nats {
    program: PathBuf,
    dir: tempfile::TempDir,
    config: String,
    port: u16,
    child: Option<Child>,
}

impl Nats {
    /// The server beside the Python of the tests; `None`, said loudly, where there is none.
    pub fn program(test: &str) -> Option<PathBuf> {
        let python = std::env::var_os("TEST_PYTHON").map(PathBuf::from);
        let program = python.and_then(|p| Some(p.parent()?.join("nats-server"))).filter(|p| p.is_file());
        if program.is_none() {
            eprintln!("SKIPPED {test}: there is no nats-server beside TEST_PYTHON (run `make test`)");
        }
        program
    }

    /// A server that asks for no credentials.
    pub fn start(test: &str) -> Option<Self> {
        Self::with_config(test, |_| String::new())
    }

    /// A server with more configuration, which may name files that it writes into the server's folder.
    pub fn with_config(test: &str, config: impl FnOnce(&Path) -> String) -> Option<Self> {
        Some(Self::of(Self::program(test)?, config))
    }

    /// A server of this program.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn of(program: PathBuf, config: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::Builder::new().prefix("squire-nats-").tempdir().expect("a folder");
        let config = config(dir.path());
        let mut nats = Self { program, dir, config, port: 0, child: None };
        nats.run();
        nats
    }

    /// Three servers of one cluster, named `n0` to `n2`. They need some seconds to find together.
    ///
    /// # Panics
    /// When one does not come up.
    pub fn cluster(test: &str) -> Option<Vec<Self>> {
        let program = Self::program(test)?;
        let free = || std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let held: Vec<_> = (0..3).map(|_| free()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().expect("an address").port()).collect();
        drop(held);
        let routes: Vec<String> = ports.iter().map(|p| format!("nats://127.0.0.1:{p}")).collect();
        let routes = routes.join(", ");
        let one = |(n, port): (usize, &u16)| {
            let config =
                format!("server_name: n{n}\ncluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}");
            Self::of(program.clone(), |_| config)
        };
        Some(ports.iter().enumerate().map(one).collect())
    }

    /// Starts it, on the port and with the store that it had before.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn run(&mut self) {
        let dir = self.dir.path();
        let port = if self.port == 0 { "-1".to_owned() } else { self.port.to_string() };
        let text = format!(
            "listen: 127.0.0.1:{port}\nports_file_dir: {dir:?}\njetstream {{ store_dir: {store:?} }}\n{}\n",
            self.config,
            store = dir.join("store"),
        );
        std::fs::write(dir.join("nats.conf"), text).expect("written");
        let log = std::fs::File::create(dir.join("log")).expect("a file");
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(dir.join("nats.conf")).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().expect("nats-server ran");
        let ports = dir.join(format!("nats-server_{}.ports", child.id()));
        let deadline = Instant::now() + UP;
        // The file appears once the server listens.
        let text = loop {
            let text = std::fs::read_to_string(&ports).unwrap_or_default();
            if text.contains("127.0.0.1:") {
                break text;
            }
            let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(child.try_wait().expect("a child").is_none(), "nats-server ended: {}", log());
            assert!(Instant::now() < deadline, "nats-server did not come up: {}", log());
            std::thread::sleep(Duration::from_millis(5));
        };
        let tail = text.split("127.0.0.1:").nth(1).expect("an address");
        self.port = tail.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a port");
        self.child = Some(child);
    }

    /// Kills it, by its id.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    /// Loses everything that was stored.
    ///
    /// # Panics
    /// When there is no store.
    pub fn forget(&self) {
        std::fs::remove_dir_all(self.dir.path().join("store")).expect("removed");
    }

    /// A file in the server's folder.
    ///
    /// # Panics
    /// When the path is not UTF-8.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, without credentials.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Which server of the cluster leads a stream: `n1`; `None` while nobody does, or the stream is not there.
    pub fn leader(&self, stream: &str) -> Option<String> {
        let info = self.ask(&format!("$JS.API.STREAM.INFO.{stream}")).ok()?;
        Some(info["cluster"]["leader"].as_str()?.to_owned())
    }

    /// Whether its cluster has found together: its servers answer for all of JetStream.
    pub fn has_leader(&self) -> bool {
        self.ask("$JS.API.INFO").is_ok_and(|info| info["error"].is_null())
    }

    /// One question in NATS's own protocol, the answer read as JSON.
    fn ask(&self, subject: &str) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer 0\r\n\r\n")?;
        let mut lines = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let Some(head) = line.strip_prefix("MSG ") else { continue };
            let size = head.trim().rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let mut payload = vec![0; size];
            lines.read_exact(&mut payload)?;
            return Ok(serde_json::from_slice(&payload)?);
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
