//! Sources of values, and secrets.

use std::fs;

use squire_service::config::{Source, redact_command};

use crate::fixture::loader;

#[test]
fn every_value_knows_where_it_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("squire.toml");
    fs::write(&file, "[estate]\nname = \"lab\"\nroots = [\"s3://a\"]\n").unwrap();
    let loaded = loader(dir.path())
        .env([("SQUIRE_LIMITS__MEMORY", "2GiB")])
        .sets(["policy.retain_versions=5"])
        .flag("--registry", "registry.root", Some("/reg"))
        .load()
        .unwrap();
    let source = |key: &str| loaded.source_of(key).cloned().unwrap();
    assert_eq!(source("estate.name"), Source::File(file.clone()));
    assert_eq!(source("estate.roots"), Source::File(file.clone()));
    assert_eq!(source("limits.memory"), Source::Env("SQUIRE_LIMITS__MEMORY".into()));
    assert_eq!(source("policy.retain_versions"), Source::Set);
    assert_eq!(source("registry.root"), Source::Flag("--registry".into()));
    assert_eq!(source("limits.concurrency"), Source::Default);
    assert_eq!(source("estate.tiers.gold"), Source::Default);
    assert_eq!(loaded.source_of("limits.memori"), None);

    let text = loaded.show_text();
    let line = |key: &str| text.lines().find(|l| l.starts_with(&format!("{key} ="))).unwrap().to_owned();
    assert!(line("limits.memory").contains("\"2GiB\""), "{text}");
    assert!(line("limits.memory").ends_with("# environment SQUIRE_LIMITS__MEMORY"), "{text}");
    assert!(line("policy.retention").contains("\"7d\"") && line("policy.retention").ends_with("# default"));
    assert!(line("estate.name").ends_with(&format!("# {}", file.display())));
}

#[test]
fn values_shown_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let before = loader(dir.path()).sets(["limits.memory=1500MB", "grace.drain=90m"]).load().unwrap();
    let sets: Vec<String> = before
        .leaves()
        .iter()
        .filter(|leaf| !leaf.value.is_null() && leaf.value != "(redacted)")
        .map(|leaf| format!("{}={}", leaf.key, leaf.value))
        .collect();
    let after = loader(dir.path()).sets(sets).load().unwrap();
    assert_eq!(after.config, before.config);
    assert_eq!(after.digest(), before.digest());
}

#[test]
fn secrets_are_shown_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"
[storage]
aws_region = "eu-1"
aws_secret_access_key = "hunter2-a"
[storage."s3://bucket"]
aws_session_token = "hunter2-b"
[storage.delete]
azure_storage_account_key = "hunter2-c"
[storage."https://catalog"]
"Header.X-Org" = "hunter2-e"
[bus]
kind = "nats"
url = "nats://user:hunter2-d@host:4222"
credentials = "/etc/nats.creds"
"#;
    fs::write(dir.path().join("squire.toml"), text).unwrap();
    let loaded = loader(dir.path()).load().unwrap();
    let json = loaded.show_json().to_string();
    for shown in [loaded.show_text(), json, format!("{:?}", loaded.config.storage)] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let text = loaded.show_text();
    assert!(text.contains("storage.aws_secret_access_key = \"(redacted)\""), "{text}");
    assert!(text.contains("storage.\"s3://bucket\".aws_session_token = \"(redacted)\""), "{text}");
    assert!(text.contains("bus.url = \"nats://(redacted)@host:4222\""), "{text}");
    assert!(text.contains("storage.aws_region = \"eu-1\""), "{text}");
    assert!(text.contains("bus.credentials = \"/etc/nats.creds\""), "{text}");
    // The values themselves are there.
    assert_eq!(loaded.config.storage.options_for("s3://bucket/x")["aws_session_token"], "hunter2-b");
}

#[test]
fn secrets_of_the_bus_are_shown_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let seed = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY";
    let servers = "nats://u:hunter2-a@one:4222, v:hunter2-b@two:4222,three";
    for (keys, shown_as) in [
        (format!("url = \"{servers}\""), "bus.url = \"nats://(redacted)@one:4222,(redacted)@two:4222,three\""),
        ("url = \"one\"\nuser = \"u\"\npassword = \"hunter2\"".to_owned(), "bus.password = \"(redacted)\""),
        ("url = \"one\"\ntoken = \"hunter2\"".to_owned(), "bus.token = \"(redacted)\""),
        ("url = \"one\"\nnkey = \"/etc/nats.seed\"".to_owned(), "bus.nkey = \"/etc/nats.seed\""),
    ] {
        fs::write(dir.path().join("squire.toml"), format!("[bus]\nkind = \"nats\"\n{keys}\n")).unwrap();
        let loaded = loader(dir.path()).load().unwrap();
        assert!(loaded.show_text().contains(shown_as), "{}", loaded.show_text());
        let all = format!("{} {} {:?}", loaded.show_text(), loaded.show_json(), loaded.config);
        assert!(!all.contains("hunter2"), "{all}");
    }
    let set =
        |value: &str| redact_command(["x", "--set", &format!("bus.url={value}"), &format!("--set=bus.url={value}")]);
    assert!(!set("u:hunter2@one,nats://v:hunter2@two").contains("hunter2"), "{}", set(servers));
    let error = loader(dir.path()).sets([format!("bus.nkey={seed}")]).load().unwrap_err();
    assert!(!format!("{error} {error:?}").contains("SUANQ"), "{error}");
}

#[test]
fn a_secret_of_the_wrong_type_is_not_told_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[storage]\naws_secret_access_key = [\"hunter2\"]\n[floors]\ntoken = \"hunter2\"\n";
    fs::write(dir.path().join("squire.toml"), text).unwrap();
    let error = loader(dir.path()).load().unwrap_err();
    let mut keys: Vec<&str> = error.issues().iter().map(|i| i.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["floors.token", "storage.aws_secret_access_key"]);
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[test]
fn the_command_line_is_kept_without_secrets() {
    let args = [
        "squire-maintenance",
        "sweep",
        "./my lake",
        "--set",
        "storage.aws_secret_access_key=hunter2",
        "--set=storage.\"s3://b\".aws_session_token=hunter2",
        "--set",
        "limits.memory=2GiB",
        "--registry",
        "s3://user:hunter2@host/x",
    ];
    let shown = redact_command(args);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.starts_with("squire-maintenance sweep './my lake' --set"), "{shown}");
    assert!(shown.contains("limits.memory=2GiB"), "{shown}");
}

#[test]
fn the_digest_depends_on_values_and_not_on_where_they_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let plain = loader(dir.path()).load().unwrap().digest();
    let said = loader(dir.path()).sets(["limits.concurrency=4"]).load().unwrap().digest();
    let other = loader(dir.path()).sets(["limits.concurrency=5"]).load().unwrap().digest();
    assert_eq!(plain, said);
    assert_ne!(plain, other);
    assert_eq!(plain.len(), 64);
}
