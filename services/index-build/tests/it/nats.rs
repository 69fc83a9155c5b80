//! A real nats-server on loopback, stopped by the id it was started with.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
    port: u16,
    child: Option<Child>,
}

impl Nats {
    pub(crate) fn of(program: PathBuf) -> Self {
        let dir = tempfile::Builder::new().prefix("squire-nats-").tempdir().expect("a folder");
        let mut nats = Self { program, dir, port: 0, child: None };
        nats.run();
        nats
    }

    /// Starts it, on the port and with the store that it had before.
    pub(crate) fn run(&mut self) {
        let dir = self.dir.path();
        let port = if self.port == 0 { "-1".to_owned() } else { self.port.to_string() };
        let store = dir.join("store");
        let text = format!("listen: 127.0.0.1:{port}\nports_file_dir: {dir:?}\njetstream {{ store_dir: {store:?} }}\n");
        std::fs::write(dir.join("nats.conf"), text).expect("written");
        let log = std::fs::File::create(dir.join("log")).expect("a file");
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(dir.join("nats.conf")).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().expect("nats-server ran");
        let ports = dir.join(format!("nats-server_{}.ports", child.id()));
        let deadline = Instant::now() + Duration::from_secs(30);
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
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    /// Its address, with a user and a password: a server that asks for none takes any.
    pub(crate) fn url(&self) -> String {
        format!("nats://someone:{PASSWORD}@127.0.0.1:{}", self.port)
    }
}

/// The password of the URL, which must be shown nowhere.
pub(crate) const PASSWORD: &str = "fake-bus-password";

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
