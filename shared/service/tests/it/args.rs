//! The common arguments, and how errors are told.

use clap::{CommandFactory, Parser};
use rstest::rstest;
use squire_service::cli::{Common, Exit, Failure, OutputFormat, completion, print_error};

use crate::fixture::{Floors, Policy};

#[derive(Debug, Parser)]
#[command(name = "squire-test")]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Plan { roots: Vec<String> },
}

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once(&"squire-test").chain(args))
}

#[test]
fn common_arguments_are_taken_after_the_verb_too() {
    let cli =
        parse(&["plan", "./lake", "--set", "a.b=1", "--set", "c.d=2", "-o", "jsonl", "-vv", "--check-config"]).unwrap();
    assert_eq!(cli.common.sets, ["a.b=1", "c.d=2"]);
    assert_eq!(cli.common.output, OutputFormat::Jsonl);
    assert_eq!((cli.common.verbose, cli.common.check_config), (2, true));
    let Some(Verb::Plan { roots }) = cli.verb else { panic!("no verb") };
    assert_eq!(roots, ["./lake"]);
    assert!(parse(&["--check-config"]).unwrap().verb.is_none());
}

#[test]
fn a_file_option_takes_no_root() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    let ok = parse(&["plan", "--json", file.to_str().unwrap()]).unwrap();
    assert_eq!(ok.common.json.as_deref(), Some(file.as_path()));
    let directory = dir.path().to_str().unwrap();
    for option in ["--json", "--html", "--metrics-file"] {
        for root in [directory, "./no-such-dir/", "s3://bucket/lake", "file:///lake", "", "-"] {
            let error = parse(&["plan", option, root]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{option} {root}");
            let text = error.to_string();
            assert!(text.contains(option), "{text}");
            assert!(text.contains("the file to write") || text.contains("-o json"), "{text}");
        }
        let error = parse(&["plan", option, "no-such-dir/report.json"]).unwrap_err();
        assert!(error.to_string().contains("make the directory first"), "{error}");
    }
}

#[test]
fn the_arguments_reach_the_configuration() {
    let cli = parse(&["--registry", "s3://control/squire", "--set", "limits.concurrency=9", "--config", "-"]).unwrap();
    let loaded = cli
        .common
        .loader::<Policy, Floors>(9465)
        .env(Vec::<(String, String)>::new())
        .stdin("[registry]\nroot = \"elsewhere\"\n")
        .load()
        .unwrap();
    assert_eq!(loaded.config.registry.root.as_deref(), Some("s3://control/squire"));
    assert_eq!(loaded.source_of("registry.root").unwrap().to_string(), "--registry");
    assert_eq!(loaded.config.limits.concurrency, 9);
    assert_eq!(loaded.config.http.listen.port(), 9465);
    assert!(loaded.checked_text().starts_with("configuration ok: standard input; 2 of "), "{}", loaded.checked_text());
}

#[test]
fn a_completion_script_knows_the_options() {
    let script = completion::<Cli>(clap_complete::Shell::Bash);
    assert!(script.contains("squire-test") && script.contains("--metrics-file"));
    Cli::command().debug_assert();
}

#[rstest]
#[case(Exit::Ok, 0)]
#[case(Exit::CouldNotRun, 1)]
#[case(Exit::Usage, 2)]
#[case(Exit::Failed, 3)]
#[case(Exit::Pending, 4)]
#[case(Exit::Interrupted, 130)]
#[case(Exit::Terminated, 143)]
fn exit_codes_are_those_of_the_contract(#[case] exit: Exit, #[case] code: u8) {
    assert_eq!(exit.code(), code);
}

fn told(error: &anyhow::Error, verbose: bool) -> (Exit, String) {
    let mut out = Vec::new();
    let exit = print_error(&mut out, error, verbose);
    (exit, String::from_utf8(out).unwrap())
}

#[test]
fn an_error_says_what_why_and_what_to_do() {
    let io = std::io::Error::other("disk on fire");
    let failure = Failure::usage("cannot open the registry ./typo").remedy("name one that exists").caused_by(io);
    let error = anyhow::Error::from(failure).context("while planning ./lake");
    let (exit, text) = told(&error, false);
    assert_eq!(exit, Exit::Usage);
    assert_eq!(
        text,
        "error: while planning ./lake\n  because: cannot open the registry ./typo\n  to do: name one that exists\n  \
         (-v shows all causes)\n"
    );
    let (_, text) = told(&error, true);
    assert!(text.contains("  caused by: disk on fire\n"), "{text}");
}

#[test]
fn configuration_errors_are_usage_errors_and_the_rest_could_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let config = crate::fixture::loader(dir.path()).sets(["a=b"]).load().unwrap_err();
    assert_eq!(told(&config.into(), false).0, Exit::Usage);
    let plan = squire_service::planfile::PlanFile::<u8>::read(dir.path()).unwrap_err();
    assert_eq!(told(&plan.into(), false).0, Exit::Usage);
    assert_eq!(told(&anyhow::anyhow!("no"), false).0, Exit::CouldNotRun);
    assert_eq!(told(&Failure::refused("held").into(), false).0, Exit::Failed);
}

#[test]
fn a_name_in_an_error_cannot_drive_the_terminal() {
    let (_, text) = told(&anyhow::anyhow!("no such table a\u{1b}[2J"), false);
    assert!(!text.contains('\u{1b}'), "{text:?}");
}
