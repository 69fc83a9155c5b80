//! Precedence, unknown keys, types.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use rstest::rstest;
use squire_service::config::{ConfigErrorKind, Loader, Mode, Source};

use crate::fixture::{Floors, Policy, TestConfig, loader};

fn with_file(text: &str) -> (tempfile::TempDir, Loader<Policy, Floors>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("squire.toml"), text).unwrap();
    let loader = loader(dir.path());
    (dir, loader)
}

fn refusal(loader: Loader<Policy, Floors>) -> String {
    let error = loader.load().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Invalid);
    error.to_string()
}

#[test]
fn defaults_are_those_of_the_contract() {
    let config = TestConfig::default();
    assert_eq!(config.estate.name, "default");
    assert_eq!(config.estate.mode, Mode::Maintain);
    assert_eq!(config.estate.tiers["bronze"], 512);
    assert_eq!(config.estate.tiers["silver"], 262_144);
    assert_eq!(config.estate.tiers["gold"], 524_288);
    assert_eq!(config.estate.target_bytes, ByteSize::b(1_073_741_824));
    assert_eq!(config.estate.small_bytes, ByteSize::b(1_048_576));
    assert_eq!(config.limits.memory, ByteSize::b(4_294_967_296));
    assert_eq!((config.limits.concurrency, config.limits.delete_rate), (4, 100));
    assert_eq!(config.limits.distribute_above, ByteSize::b(21_474_836_480));
    assert_eq!(config.rollout.percent, 100);
    assert_eq!(config.grace.trash, Duration::from_secs(604_800));
    assert_eq!(config.grace.drain, Duration::from_secs(300));
    assert_eq!(config.grace.claim_ttl, Duration::from_secs(90));
    assert_eq!(config.grace.record_history, Duration::from_secs(34_560_000));
    assert_eq!(config.schedule.maintenance, "0 */10 * * * *");
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:9464");
}

#[test]
fn without_a_file_the_defaults_stand_and_the_port_is_the_binarys() {
    let dir = tempfile::tempdir().unwrap();
    let loaded =
        Loader::<Policy, Floors>::new(9466).directory(dir.path()).env(Vec::<(String, String)>::new()).load().unwrap();
    assert_eq!(loaded.file, None);
    assert_eq!(loaded.config.http.listen.to_string(), "127.0.0.1:9466");
    assert_eq!(loaded.config.estate, TestConfig::default().estate);
}

#[test]
fn each_place_wins_over_those_before_it() {
    let file = "[limits]\nmemory = \"1GiB\"\n[registry]\nroot = \"from-file\"\n";
    let (_dir, loader) = with_file(file);
    assert_eq!(loader.load().unwrap().config.limits.memory, ByteSize::gib(1));

    let (_dir, loader) = with_file(file);
    let env = [("SQUIRE_LIMITS__MEMORY", "2GiB"), ("SQUIRE_REGISTRY__ROOT", "from-env"), ("HOME", "/root")];
    let loaded = loader.env(env).load().unwrap();
    assert_eq!(loaded.config.limits.memory, ByteSize::gib(2));
    assert_eq!(loaded.config.registry.root.as_deref(), Some("from-env"));

    let (_dir, loader) = with_file(file);
    let loaded = loader
        .env(env)
        .sets(["limits.memory=3GiB", "registry.root=from-set"])
        .flag("--registry", "registry.root", Some("from-flag"))
        .load()
        .unwrap();
    assert_eq!(loaded.config.limits.memory, ByteSize::gib(3));
    assert_eq!(loaded.config.registry.root.as_deref(), Some("from-flag"));
}

#[test]
fn the_last_set_of_a_key_wins() {
    let (_dir, loader) = with_file("");
    let loaded = loader.sets(["limits.concurrency=2", "limits.concurrency=7"]).load().unwrap();
    assert_eq!(loaded.config.limits.concurrency, 7);
}

#[test]
fn standard_input_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let loaded = loader(dir.path()).file(Some("-".into())).stdin("[estate]\nmode = \"observe\"\n").load().unwrap();
    assert_eq!(loaded.config.estate.mode, Mode::Observe);
    assert_eq!(loaded.source_of("estate.mode"), Some(&Source::Stdin));
}

#[test]
fn a_named_file_that_does_not_exist_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = loader(dir.path()).file(Some("no/such.toml".into())).load().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Read);
    assert!(error.to_string().contains("no/such.toml"), "{error}");
    assert!(error.to_string().contains("--config"), "{error}");
}

#[test]
fn broken_toml_names_file_and_line() {
    let (_dir, loader) = with_file("[estate]\nname = \n");
    let error = loader.load().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Syntax);
    let text = error.to_string();
    assert!(text.contains("squire.toml") && text.contains("line 2"), "{text}");
}

#[rstest]
#[case("[limits]\nmemori = \"2GiB\"\n", "`limits.memori`: unknown key; did you mean `limits.memory`?")]
#[case("[limit]\nmemory = \"2GiB\"\n", "`limit`: unknown key; did you mean `limits`?")]
#[case("[estate]\nmemory = \"2GiB\"\n", "`estate.memory`: unknown key; did you mean `limits.memory`?")]
#[case("[policy]\nretension = \"7d\"\n", "`policy.retension`: unknown key; did you mean `policy.retention`?")]
#[case("[floors]\nretentions = \"7d\"\n", "`floors.retentions`: unknown key; did you mean `floors.retention`?")]
#[case("retention = \"7d\"\n", "`retention`: unknown key; did you mean `policy.retention`?")]
#[case("[bus.tls]\ncaa = \"x\"\n", "`bus.tls.caa`: unknown key; did you mean `bus.tls.ca`?")]
fn an_unknown_key_in_a_file_names_file_key_and_nearest(#[case] text: &str, #[case] expected: &str) {
    let (dir, loader) = with_file(text);
    let message = refusal(loader);
    assert_eq!(message, format!("{}: {expected}", dir.path().join("squire.toml").display()));
}

#[rstest]
#[case("SQUIRE_LIMITS__MEMORI", "did you mean SQUIRE_LIMITS__MEMORY?")]
#[case("SQUIRE_LIMIT__MEMORY", "did you mean SQUIRE_LIMITS")]
#[case("SQUIRE_REGISTRY", "did you mean SQUIRE_REGISTRY__ROOT?")]
#[case("SQUIRE_LIMITS_MEMORY", "did you mean SQUIRE_LIMITS__MEMORY?")]
#[case("SQUIRE_POLICY__RETAIN_VERSION", "did you mean SQUIRE_POLICY__RETAIN_VERSIONS?")]
#[case("SQUIRE_", "SQUIRE_")]
fn an_unknown_variable_is_refused_with_the_nearest(#[case] name: &str, #[case] expected: &str) {
    let (_dir, loader) = with_file("");
    let message = refusal(loader.env([(name, "1")]));
    assert!(message.contains(&format!("environment {name}:")), "{message}");
    assert!(message.contains(expected), "{message}");
}

#[test]
fn variables_that_kubernetes_makes_of_services_are_no_mistakes() {
    let (_dir, loader) = with_file("");
    let names = [
        "SQUIRE_MAINTENANCE_SERVICE_HOST",
        "SQUIRE_MAINTENANCE_SERVICE_PORT",
        "SQUIRE_MAINTENANCE_SERVICE_PORT_HTTP",
        "SQUIRE_MAINTENANCE_PORT",
        "SQUIRE_MAINTENANCE_PORT_9464_TCP",
        "SQUIRE_MAINTENANCE_PORT_9464_TCP_ADDR",
        "SQUIRE_PORT",
        "SQUIRE_PORT_9464_TCP_PROTO",
        "SQUIRE_SERVICE_HOST",
    ];
    let loaded = loader.env(names.map(|n| (n, "tcp://10.0.0.1:9464"))).load().unwrap();
    assert_eq!(loaded.config, TestConfig::default());
}

#[test]
fn an_unknown_set_is_refused_with_the_nearest() {
    let (_dir, loader) = with_file("");
    let message = refusal(loader.sets(["limits.concurency=3"]));
    assert_eq!(message, "--set: `limits.concurency`: unknown key; did you mean `limits.concurrency`?");
}

#[rstest]
#[case("limits.memory")]
#[case("=3")]
#[case("limits..memory=3")]
#[case("\"limits.memory=3")]
fn a_malformed_set_is_refused(#[case] set: &str) {
    let (_dir, loader) = with_file("");
    let message = refusal(loader.sets([set]));
    assert!(message.starts_with("--set: ") && message.contains("--set key=value"), "{message}");
}

#[test]
fn all_mistakes_are_named_at_once() {
    let (_dir, loader) = with_file("[estate]\nmod = \"observe\"\n[limits]\nmemory = 5.5\nconcurency = 2\n");
    let error = loader.sets(["grace.trash=soon"]).load().unwrap_err();
    let mut keys: Vec<&str> = error.issues().iter().map(|i| i.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["estate.mod", "grace.trash", "limits.concurency", "limits.memory"]);
}

#[rstest]
#[case("[limits]\nmemory = 5.5\n", "limits.memory", "a size such as \"4GiB\"")]
#[case("[limits]\nmemory = \"lots\"\n", "limits.memory", "a size such as \"4GiB\"")]
#[case("[limits]\nmemory = -1\n", "limits.memory", "a size such as \"4GiB\"")]
#[case("[limits]\nconcurrency = \"many\"\n", "limits.concurrency", "a whole number")]
#[case("[policy]\nretention = 7\n", "policy.retention", "a duration such as \"7d\"")]
#[case("[policy]\nretention = \"7\"\n", "policy.retention", "a duration such as \"7d\"")]
#[case("[policy]\ncompact = \"yes\"\n", "policy.compact", "true or false")]
#[case("[policy]\nerase_within = 3\n", "policy.erase_within", "a duration such as \"7d\"")]
#[case("[estate]\nmode = \"watch\"\n", "estate.mode", "observe, compact, maintain")]
#[case("[estate]\nroots = \"s3://a\"\n", "estate.roots", "a list such as")]
#[case("[http]\nlisten = \"9464\"\n", "http.listen", "socket address")]
#[case("estate = 3\n", "estate", "a table")]
#[case("[rollout]\npercent = 101\n", "rollout.percent", "0 to 100")]
#[case("[rollout]\npercent = 1000\n", "rollout.percent", "a whole number")]
#[case("[limits]\nconcurrency = 0\n", "limits.concurrency", "1 or more")]
#[case("[schedule]\ntimezone = \"Mars\"\n", "schedule.timezone", "Europe/Berlin")]
#[case("[schedule]\nmaintenance = \"hourly\"\n", "schedule.maintenance", "seconds first")]
#[case("[schedule]\nblackout = [\"2026-12-20\"]\n", "schedule.blackout", "2026-12-20/2027-01-02")]
#[case("[schedule]\nblackout = [\"2027-01-02/2026-12-20\"]\n", "schedule.blackout", "ends before")]
#[case("[estate]\ninclude = [\"a{\"]\n", "estate.include", "bronze/**")]
#[case("[estate]\ntiers = { bronze = 0 }\n", "estate.tiers.bronze", "1 or more")]
#[case("[bus]\nkind = \"nats\"\n", "bus.url", "nats://host:4222")]
#[case("[budget]\ncost_per_day = 3.5\n", "budget.cost_per_day", "prices.put_per_1000")]
#[case("[prices]\nput_per_1000 = -1.0\n", "prices.put_per_1000", "zero or above")]
fn a_wrong_value_names_file_key_and_what_is_accepted(#[case] text: &str, #[case] key: &str, #[case] accepted: &str) {
    let (_dir, loader) = with_file(text);
    let error = loader.load().unwrap_err();
    assert_eq!(error.issues()[0].key, key, "{error}");
    let message = error.to_string();
    assert!(message.contains(accepted), "{message}");
    let file_or_default = message.contains("squire.toml") || key == "bus.url";
    assert!(file_or_default, "{message}");
}

#[test]
fn durations_are_read_in_lances_spelling_too() {
    let (_dir, loader) = with_file("[policy]\nretention = \"14days\"\nerase_within = \"1h 30m\"\n");
    let policy = loader.load().unwrap().config.policy;
    assert_eq!(policy.retention, Duration::from_secs(1_209_600));
    assert_eq!(policy.erase_within, Some(Duration::from_secs(5_400)));
}

#[test]
fn text_that_looks_like_another_type_is_still_text_where_text_is_wanted() {
    let (_dir, loader) = with_file("");
    let loaded = loader
        .env([("SQUIRE_ESTATE__NAME", "123")])
        .sets(["policy.window=nan", "estate.roots=[\"a\", \"b\"]", "policy.compact=false"])
        .flag("--registry", "registry.root", Some("2026-01-01"))
        .load()
        .unwrap();
    assert_eq!(loaded.config.estate.name, "123");
    assert_eq!(loaded.config.policy.window, "nan");
    assert_eq!(loaded.config.estate.roots, ["a", "b"]);
    assert!(!loaded.config.policy.compact);
    assert_eq!(loaded.config.registry.root.as_deref(), Some("2026-01-01"));
}

#[test]
fn a_table_of_tiers_replaces_the_default_and_one_tier_changes_one() {
    let (_dir, loader) = with_file("[estate.tiers]\nraw = 1000\n");
    let tiers = loader.load().unwrap().config.estate.tiers;
    assert_eq!(tiers.into_iter().collect::<Vec<_>>(), [("raw".to_owned(), 1000)]);

    let (_dir, loader) = with_file("[estate]\ntiers = {}\n");
    assert!(loader.load().unwrap().config.estate.tiers.is_empty());

    let (_dir, loader) = with_file("");
    let tiers = loader.sets(["estate.tiers.bronze=1024"]).load().unwrap().config.estate.tiers;
    assert_eq!(tiers["bronze"], 1024);
    assert_eq!(tiers["gold"], 524_288);

    let (_dir, loader) = with_file("[estate.tiers]\nraw = 1000\n");
    let tiers = loader.sets(["estate.tiers={}"]).load().unwrap().config.estate.tiers;
    assert!(tiers.is_empty());
}

#[test]
fn a_binary_can_check_its_own_sections() {
    let (_dir, loader) = with_file("[policy]\nwindow = \"never\"\n");
    let loader = loader.validate(|config| {
        vec![(
            "policy.window".to_owned(),
            format!("{:?} is no window", config.policy.window),
            "leave it empty".to_owned(),
        )]
    });
    let message = refusal(loader);
    assert!(message.contains("squire.toml: `policy.window`: \"never\" is no window; leave it empty"), "{message}");
}

#[test]
fn the_default_file_is_looked_for_in_the_given_directory_only() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("below")).unwrap();
    fs::write(dir.path().join("squire.toml"), "[estate]\nname = \"above\"\n").unwrap();
    let loaded = loader(&dir.path().join("below")).load().unwrap();
    assert_eq!(loaded.config.estate.name, "default");
    let loaded = loader(Path::new(dir.path())).load().unwrap();
    assert_eq!(loaded.config.estate.name, "above");
}

#[rstest]
#[case("url = ''", "bus.url", "no server is named")]
#[case("url = 'nats://a'\nuser = 'u'", "bus.user", "go together")]
#[case("url = 'nats://a'\ntoken = 't'\nnkey = '/n'", "bus.credentials", "several ways")]
#[case(
    "url = 'nats://a'\nnkey = 'SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY'",
    "bus.nkey",
    "is a seed itself"
)]
#[case("url = 'nats://a'\ntls = { cert = '/c' }", "bus.tls.cert", "go together")]
#[case("url = 'nats://a'\nack_wait = '31s'", "bus.ack_wait", "more than 30s")]
#[case("url = 'nats://a'\nack_wait = '1ms'", "bus.ack_wait", "run out at once")]
#[case("url = 'nats://a'\nmax_attempts = 0", "bus.max_attempts", "give up every message")]
#[case("url = 'nats://a'\nreplicas = 0", "bus.replicas", "no number of copies")]
fn a_bus_that_cannot_work_is_refused(#[case] keys: &str, #[case] key: &str, #[case] what: &str) {
    let (_dir, loader) = with_file(&format!("[bus]\nkind = 'nats'\n{keys}\n"));
    let text = loader.load().unwrap_err().to_string();
    assert!(text.contains(key) && text.contains(what), "{text}");
    assert!(!text.contains("SUANQ"), "{text}");
}
