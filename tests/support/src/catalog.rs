//! Real Lance namespaces, written by pylance: directories, Lance's own REST adapter, and SeaweedFS's server.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::server::Talk;

/// pylance and the servers that it started; they stop when this is dropped or the test process ends.
pub struct Catalog {
    talk: Mutex<Talk>,
}

impl Catalog {
    /// Starts `tests/py/namespaces.py`; `None`, said loudly, when `TEST_PYTHON` names no Python with pylance.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(test: &str) -> Option<Self> {
        let Ok(python) = std::env::var("TEST_PYTHON") else {
            eprintln!("SKIPPED {test}: TEST_PYTHON names no Python with pylance (run `make test`)");
            return None;
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../py/namespaces.py");
        let mut command = Command::new(python);
        let child = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python ran");
        Some(Self { talk: Mutex::new(Talk::with(child)) })
    }

    /// Does something at a directory or server (`{"root": …}` or `{"url": …}`, see `tests/py/namespaces.py`), and returns what it says.
    ///
    /// # Panics
    /// When pylance fails.
    #[track_caller]
    pub fn ask(&self, op: &str, at: &Value, args: Value) -> Value {
        let answer = self.try_ask(op, at, args);
        assert!(answer["error"].is_null(), "pylance: {op}: {}", answer["error"]);
        answer
    }

    /// As [`Catalog::ask`], a failure being an answer: `{"error": TEXT, "type": NAME}`.
    pub fn try_ask(&self, op: &str, at: &Value, args: Value) -> Value {
        let mut asked = json!({ "op": op });
        for part in [at, &args] {
            for (key, value) in part.as_object().into_iter().flatten() {
                asked[key] = value.clone();
            }
        }
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        talk.ask(&asked.to_string())
    }

    /// The URL of a REST server over a directory namespace.
    #[track_caller]
    pub fn serve(&self, root: &str, properties: Value) -> String {
        let served = self.ask("serve", &json!({ "root": root }), json!({ "properties": properties }));
        served["url"].as_str().unwrap_or_default().to_owned()
    }
}
