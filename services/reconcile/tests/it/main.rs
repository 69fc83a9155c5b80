//! The command line of `squire-reconcile`.

#![allow(clippy::unwrap_used)]

mod asked_again;
mod bounds;
mod bytes;
mod contracts;
mod estate;
mod indices;
mod kinds;
mod layouts;
mod namespaces;
mod reclaim;
mod reclaim_killed;
mod reclaim_refused;
mod reclaim_s3;
mod reclaim_trash;
mod report;
mod serve;

use assert_cmd::Command;

fn squire(dir: &tempfile::TempDir) -> Command {
    let mut command = Command::cargo_bin("squire-reconcile").unwrap();
    command.current_dir(dir.path()).env_clear();
    command
}

fn output(dir: &tempfile::TempDir, args: &[&str]) -> (i32, String, String) {
    let out = squire(dir).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

#[test]
fn every_verb_has_help_with_an_example() {
    let dir = tempfile::tempdir().unwrap();
    for verb in [
        "",
        "report",
        "reclaim",
        "reclaim plan",
        "reclaim show",
        "reclaim apply",
        "reclaim list",
        "reclaim undo",
        "reclaim purge",
        "serve",
        "config",
        "config show",
        "completion",
    ] {
        let args: Vec<&str> = verb.split(' ').filter(|a| !a.is_empty()).chain(["--help"]).collect();
        let (code, out, _) = output(&dir, &args);
        assert_eq!(code, 0, "{verb}");
        assert!(out.contains("Example") && out.contains("  squire-reconcile "), "{verb}: {out}");
    }
}

#[test]
fn config_show_names_the_source_of_each_value() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("squire.toml"), "[policy]\nretention = \"14days\"\n").unwrap();
    let (code, out, err) = output(&dir, &["config", "show", "--set", "limits.memory=2GiB"]);
    assert_eq!(code, 0, "{err}");
    let line =
        |key: &str| out.lines().find(|l| l.starts_with(key)).unwrap_or_else(|| panic!("{key} in {out}")).to_owned();
    assert!(line("policy.retention =").contains("14d") && line("policy.retention =").ends_with("squire.toml"), "{out}");
    assert!(line("limits.memory =").ends_with("# --set"), "{out}");
    assert!(line("http.listen =").contains("127.0.0.1:9465"), "{out}");
    assert!(line("floors.retain_versions =").ends_with("# default"), "{out}");
}

#[test]
fn a_configuration_is_checked_without_a_verb() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = output(&dir, &["--check-config"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("configuration ok: no file; 0 of "), "{out}");

    std::fs::write(dir.path().join("squire.toml"), "[policy]\nretension = \"7d\"\n").unwrap();
    let (code, out, err) = output(&dir, &["--check-config"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("squire.toml: `policy.retension`: unknown key; did you mean `policy.retention`?"), "{err}");
    std::fs::write(dir.path().join("squire.toml"), "[policy]\nwindow = \"sometimes\"\n").unwrap();
    let (code, _, err) = output(&dir, &["--check-config"]);
    assert_eq!(code, 2);
    assert!(err.contains("squire.toml: `policy`: window:"), "{err}");
}

#[test]
fn wrong_usage_is_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["no-such-verb"][..], &["--no-such-flag"], &["report", "--json", "s3://lake"]] {
        let (code, _, err) = output(&dir, args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains("error"), "{err}");
    }
    let (code, _, err) = output(&dir, &["-v"]);
    assert_eq!(code, 2);
    assert!(err.contains("no verb was given"), "{err}");
}

#[test]
fn a_store_that_does_not_answer_is_no_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = "http://127.0.0.1:1";
    let set = ["aws_region=x", "aws_access_key_id=x", "aws_secret_access_key=x", "allow_http=true"];
    let set: Vec<String> = set.iter().map(|s| format!("storage.{s}")).collect();
    let (at, roots) = (format!("storage.aws_endpoint={nobody}"), "estate.roots=[\"s3://lake\"]");
    for verb in [&["report", "s3://lake"][..], &["reclaim", "list", "--set", roots]] {
        let mut args = verb.to_vec();
        set.iter().chain([&at]).for_each(|set| args.extend(["--set", set]));
        let (code, _, err) = output(&dir, &args);
        assert_eq!(code, 1, "{args:?}: {err}");
        assert!(err.contains("could not be read") && err.contains("to do: check their addresses"), "{err}");
    }
}

#[test]
fn an_unknown_variable_of_ours_is_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    let out = squire(&dir).args(["config", "show"]).env("SQUIRE_LIMITS__MEMORI", "1GiB").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let err = String::from_utf8(out.stderr).unwrap();
    assert!(err.contains("did you mean SQUIRE_LIMITS__MEMORY?"), "{err}");
}

#[test]
fn a_completion_script_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = output(&dir, &["completion", "bash"]);
    assert_eq!(code, 0);
    assert!(out.contains("squire-reconcile"), "{out}");
}
