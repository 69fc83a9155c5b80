//! Arguments that every binary takes.

use std::io;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Loader;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// How a result looks on standard output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum OutputFormat {
    /// For people, at most 100 columns.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Jsonl,
    /// One self-contained page.
    Html,
    /// Markdown tables.
    Markdown,
}

/// Arguments that every verb of every binary takes; `#[command(flatten)]` them at the top.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Configuration file; ./squire.toml if it exists; `-` is standard input
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<String>,

    /// Registry to use; it must exist (squire-registry init)
    #[arg(long, global = true, value_name = "URI")]
    pub registry: Option<String>,

    /// Sets one key of the configuration, for example limits.memory=2GiB
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", action = ArgAction::Append)]
    pub sets: Vec<String>,

    /// Checks the configuration and ends
    #[arg(long, global = true)]
    pub check_config: bool,

    /// How log lines look, on standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value = "human")]
    pub log_format: LogFormat,

    /// More detail; twice for debugging
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// Errors only, no progress bars
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Writes the metrics of this run to FILE when it ends
    #[arg(long, global = true, value_name = "FILE", value_parser = output_file)]
    pub metrics_file: Option<PathBuf>,

    /// How the result looks on standard output; then nothing else is written there
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// Also writes the result as JSON to FILE
    #[arg(long, global = true, value_name = "FILE", value_parser = output_file)]
    pub json: Option<PathBuf>,

    /// Also writes the result as HTML to FILE
    #[arg(long, global = true, value_name = "FILE", value_parser = output_file)]
    pub html: Option<PathBuf>,
}

impl Common {
    /// A loader for the configuration with `--config`, `--set` and `--registry` applied.
    /// `listen_port` is the binary's default port.
    pub fn loader<P, F>(&self, listen_port: u16) -> Loader<P, F>
    where
        P: Serialize + DeserializeOwned + Default,
        F: Serialize + DeserializeOwned + Default,
    {
        Loader::new(listen_port).file(self.config.clone()).sets(self.sets.iter().cloned()).flag(
            "--registry",
            "registry.root",
            self.registry.as_deref(),
        )
    }

    /// Whether causes of errors are told in full.
    pub fn is_verbose(&self) -> bool {
        self.verbose > 0
    }
}

/// `completion SHELL`.
#[derive(Debug, Clone, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The completion script of command `C` for `shell`.
pub fn completion<C: CommandFactory>(shell: Shell) -> String {
    let mut command = C::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A file to write. A directory or URI is nearly always a ROOT that the option swallowed.
fn output_file(text: &str) -> Result<PathBuf, String> {
    const HINT: &str = "it takes the file to write; name the ROOT before it, for example \
                        `plan ./lake --json report.json`";
    if text == "-" {
        return Err("it writes a file; for standard output use `-o json` or `-o html`".to_owned());
    }
    if text.is_empty() {
        return Err(format!("an empty name: {HINT}"));
    }
    if text.contains("://") {
        return Err(format!("this is a URI: {HINT}"));
    }
    let path = Path::new(text);
    if text.ends_with(['/', std::path::MAIN_SEPARATOR]) || path.is_dir() {
        return Err(format!("this is a directory: {HINT}"));
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(format!("cannot write into {}: {missing}; make the directory first", parent.display()));
    }
    Ok(path.to_owned())
}
