//! A real nats-server on loopback, stopped by the id it was started with.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use squire_service::config::{Bus, BusKind};

/// The server beside the Python of the tests, or a loud skip.
pub(crate) fn program(test: &str) -> Option<PathBuf> {
    let python = std::env::var_os("TEST_PYTHON").map(PathBuf::from);
    let program = python.and_then(|p| Some(p.parent()?.join("nats-server"))).filter(|p| p.is_file());
    if program.is_none() {
        eprintln!("SKIPPED {test}: there is no nats-server beside TEST_PYTHON (run `make test`)");
    }
    program
}

pub(crate) struct Nats {
    program: PathBuf,
    dir: tempfile::TempDir,
    config: String,
    port: u16,
    child: Option<Child>,
}

impl Nats {
    pub(crate) fn start(test: &str) -> Option<Self> {
        Self::with_config(test, |_| String::new())
    }

    /// A server with more configuration, which may name files that it writes into the server's folder.
    pub(crate) fn with_config(test: &str, config: impl FnOnce(&Path) -> String) -> Option<Self> {
        Some(Self::of(program(test)?, config))
    }

    pub(crate) fn of(program: PathBuf, config: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::Builder::new().prefix("squire-nats-").tempdir().unwrap();
        let config = config(dir.path());
        let mut nats = Self { program, dir, config, port: 0, child: None };
        nats.run();
        nats
    }

    /// Three servers of one cluster.
    pub(crate) fn cluster(test: &str) -> Option<Vec<Self>> {
        let program = program(test)?;
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let held: Vec<_> = (0..3).map(|_| free()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
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

    /// Starts it, on the port that it had before.
    pub(crate) fn run(&mut self) {
        let dir = self.dir.path();
        let port = if self.port == 0 { "-1".to_owned() } else { self.port.to_string() };
        let text = format!(
            "listen: 127.0.0.1:{port}\nports_file_dir: {dir:?}\njetstream {{ store_dir: {store:?} }}\n{}\n",
            self.config,
            store = dir.join("store"),
        );
        std::fs::write(dir.join("nats.conf"), text).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let mut child = Command::new(&self.program)
            .arg("-c")
            .arg(dir.join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let ports = dir.join(format!("nats-server_{}.ports", child.id()));
        let deadline = Instant::now() + Duration::from_secs(20);
        // The file appears once the server listens.
        while !std::fs::read_to_string(&ports).is_ok_and(|t| t.contains("127.0.0.1:")) {
            let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "nats-server ended: {}", log());
            assert!(Instant::now() < deadline, "nats-server did not come up: {}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = std::fs::read_to_string(&ports).unwrap();
        let tail = text.split("127.0.0.1:").nth(1).unwrap();
        self.port = tail.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
        self.child = Some(child);
    }

    /// Kills it, by its id.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Loses everything that was stored.
    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.dir.path().join("store")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `[bus]` for it, without credentials.
    pub(crate) fn config(&self) -> Bus {
        self.at(&format!("nats://127.0.0.1:{}", self.port))
    }

    pub(crate) fn at(&self, url: &str) -> Bus {
        Bus { kind: BusKind::Nats, url: Some(url.to_owned()), ..Bus::default() }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
