//! The pass on a real S3 server, and on one that lies.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use squire_lake::Lake;

use super::common::*;

/// A running server with three datasets; it stops when this is dropped.
struct Server {
    here: Here,
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    options: HashMap<String, String>,
}

impl Server {
    fn start(test: &str, liar: bool) -> Option<Self> {
        let python = python(test)?;
        let here = Here::new();
        let script = check_py().replace("check.py", "s3.py");
        let mut command = Command::new(python);
        command.arg(script).arg(here.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
        if liar {
            command.arg("--liar");
        }
        let mut child = command.spawn().expect("python ran");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut server = Self { here, child, out, options: HashMap::new() };
        let options = server.line()["options"].clone();
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), String::from);
        server.options =
            options.as_object().expect("options").iter().map(|(key, value)| (key.clone(), text(value))).collect();
        let mut config = String::from("[storage]\n");
        for (key, value) in options.as_object().expect("options") {
            config += &format!("{key} = {value}\n");
        }
        std::fs::write(server.here.path("squire.toml"), config).expect("written");
        Some(server)
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("the server did not come up: {e}: {line:?}"))
    }

    /// What pylance reads: rows, fragments and versions.
    fn state(&mut self) -> Value {
        self.child.stdin.as_mut().expect("piped").write_all(b"state\n").expect("asked");
        self.line()
    }

    fn oracle(&self) {
        let options = self.options.clone();
        let lake = Lake::new(Arc::new(move |_: &str| options.clone()), 256 << 20);
        assert_explained(lake, "s3://lake", Leftovers::None, &[]);
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        let config = self.here.text("squire.toml");
        let mut all = args.to_vec();
        all.extend(["--config", &config, "-o", "json"]);
        squire(&all)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_lake_on_s3_comes_out_healthy_and_stays_still() {
    let Some(mut server) = Server::start("a_lake_on_s3_comes_out_healthy_and_stays_still", false) else { return };
    let report = |output: &std::process::Output| -> Value {
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(output)))
    };
    let planned = report(&server.run(&["plan", "s3://lake"]));
    assert_eq!(planned["totals"]["planned"], 3);
    assert_eq!(planned["totals"]["requests"]["put"], 0, "a plan puts nothing");
    assert_eq!(planned["totals"]["requests"]["delete"], 0, "a plan deletes nothing");
    let swept = report(&server.run(&["sweep", "s3://lake", "--yes"]));
    assert_eq!(swept["totals"]["maintained"], 3, "{swept:#}");
    let again = report(&server.run(&["sweep", "s3://lake", "--yes"]));
    assert_eq!(again["totals"]["idle"], 3, "{again:#}");
    let mut args = vec!["sweep", "s3://lake", "--yes", "--retain-versions", "2"];
    let short = one_second();
    args.extend(short.iter().map(String::as_str));
    let cleaned = report(&server.run(&args));
    assert!(cleaned["totals"]["versions_removed"].as_u64().expect("a number") >= 30, "{cleaned:#}");
    let state = server.state();
    for name in ["acme-silver/orders", "medallion/bronze-x", "odd name/with space"] {
        assert_eq!((&state[name][0], &state[name][1]), (&json!(130), &json!(1)), "{state}");
    }
    server.oracle();
}

#[test]
fn a_store_that_lies_about_put_if_absent_is_refused_before_any_write() {
    let name = "a_store_that_lies_about_put_if_absent_is_refused_before_any_write";
    let Some(server) = Server::start(name, true) else { return };
    let before = tree(&server.here.path("data/lake"));
    let output = server.run(&["sweep", "s3://lake", "--yes"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("put-if-absent"), "{}", stderr(&output));
    // What is left is the probe's own object at most.
    let after = tree(&server.here.path("data/lake"));
    let new: Vec<_> = after.iter().filter(|f| !before.contains(f)).map(|(p, _)| p).collect();
    assert!(new.iter().all(|p| p.to_string_lossy().contains("probe")), "{new:?}");
    assert!(before.iter().all(|f| after.contains(f)), "a file changed");
}
