//! One replica: a process, its log, its HTTP face.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fleet::wait;

pub(crate) struct Replica {
    child: Child,
    log: PathBuf,
    address: SocketAddr,
}

impl Replica {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Self {
        let file = std::fs::File::create(&log).expect("a file");
        let child = command.stdout(Stdio::null()).stderr(file).spawn().expect("it ran");
        let mut replica = Self { child, log, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let serving = wait("a replica serves", || {
            let ended = replica.child.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended with {ended:?}: {}", replica.text());
            replica.lines("serving").pop()
        });
        replica.address = serving["http"].as_str().expect("an address").parse().expect("an address");
        replica
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its whole log.
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The lines of its log with this message.
    pub(crate) fn lines(&self, message: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        lines.filter(|l| l["message"].as_str().is_some_and(|m| m.starts_with(message))).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("signalled");
    }

    /// Kills it and waits for its end, so that nothing is left of the process.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Whether it has ended by itself or somebody else's signal.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait("a replica ends", || self.ended())
    }

    /// Status and body of one page.
    pub(crate) fn get(&self, page: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        write!(stream, "GET {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// A page that is JSON.
    pub(crate) fn json(&self, page: &str) -> (u16, Value) {
        let (status, body) = self.get(page);
        (status, serde_json::from_str(&body).unwrap_or_else(|e| panic!("{page}: {e}: {body}")))
    }

    /// The samples of one metric: labels and value.
    pub(crate) fn metric(&self, name: &str) -> Vec<(String, f64)> {
        let (_, text) = self.get("/metrics");
        let lines = text.lines().filter_map(|l| l.strip_prefix(name));
        let samples = lines.filter(|l| l.starts_with(['{', ' '])).filter_map(|l| l.rsplit_once(' '));
        samples.map(|(labels, value)| (labels.to_owned(), value.parse().expect("a number"))).collect()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of process {}:\n{}", self.pid(), self.text());
        }
        // A stopped process dies of this signal, too.
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
