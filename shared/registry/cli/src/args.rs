//! The verbs of `squire-registry` (FACES, "Commands").

use chrono::{DateTime, Utc};
use clap::{Args, Parser, Subcommand};
use squire_registry::Level;
use squire_registry::contract::Classification;
use squire_service::cli::{Common, CompletionArgs};

#[derive(Parser)]
#[command(
    name = "squire-registry",
    version,
    about = "The records of an estate: what there is, which policy holds, what is protected, what was dropped.",
    after_help = "A SUBJECT is estate, project/P, warehouse/W, namespace/a/b, table/a/b/t or dataset/<URI>; other bytes \
                  percent-encoded.\nThe registry is --registry URI, [registry] root, or the nearest _squire at or above \
                  the working directory.\n\nExamples:\n  squire-registry init ./lake/_squire --name demo\n  \
                  squire-registry project create acme\n  squire-registry warehouse create main --project acme --root \
                  ./lake\n  squire-registry policy show table/sales/orders"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Makes a registry
    #[command(after_help = "Example: squire-registry init s3://control/squire --name production")]
    Init {
        /// Where its records will lie; inside ROOT/_squire it governs ROOT
        uri: String,
        /// The estate's name; default: [estate] name
        #[arg(long)]
        name: Option<String>,
    },
    /// Reads every record and says what does not fit together, and what the buckets of the ROOTs allow
    #[command(after_help = "Example: squire-registry check ./lake")]
    Check {
        /// Directories or URIs whose registry is meant; each bucket is tried with objects .squire-probe-* that come and go
        roots: Vec<String>,
        /// Ends the half states that have one way to end which takes nothing away
        #[arg(long)]
        mend: bool,
    },
    /// Writes all records with their history into one JSON document
    #[command(after_help = "Example: squire-registry export estate.json")]
    Export {
        /// The file; `-` is standard output
        file: String,
    },
    /// Makes records of a document, of the datasets of a bucket, or of a Lance namespace; prints what it would create
    #[command(after_help = "Example: squire-registry import estate.json --registry s3://control/squire --apply\n  \
                            squire-registry import s3://lake --project acme\n  squire-registry import https://catalog.example/lake --apply")]
    Import {
        /// A document of `export` (`-` is standard input), the directory or URI of a bucket, or the URL of a warehouse's namespace
        #[arg(value_name = "FILE|ROOT")]
        from: String,
        /// Into a registry that holds records: adds what is missing, replaces nothing
        #[arg(long)]
        merge: bool,
        /// Does it
        #[arg(long)]
        apply: bool,
        /// The project of a warehouse that has to be made; default: the only one there is, else `default`
        #[arg(long)]
        project: Option<String>,
        #[command(flatten)]
        why: Why,
    },
    /// Raises the registry to this build's feature level
    #[command(after_help = "Example: squire-registry upgrade")]
    Upgrade {
        #[command(flatten)]
        why: Why,
    },
    /// Who changed what about a subject, when and why
    #[command(after_help = "Example: squire-registry log table/sales/orders")]
    Log {
        /// The subject
        subject: String,
    },
    /// Projects (tenants)
    #[command(after_help = "Example: squire-registry project create acme")]
    Project {
        #[command(subcommand)]
        verb: ProjectVerb,
    },
    /// Warehouses: one bucket or root prefix each
    #[command(after_help = "Example: squire-registry warehouse create main --project acme --root s3://lake")]
    Warehouse {
        #[command(subcommand)]
        verb: WarehouseVerb,
    },
    /// Namespaces; they nest
    #[command(after_help = "Example: squire-registry namespace create namespace/sales --warehouse main")]
    Namespace {
        #[command(subcommand)]
        verb: NamespaceVerb,
    },
    /// Tables: names for datasets
    #[command(after_help = "Example: squire-registry table create table/sales/orders --location sales/orders.lance")]
    Table {
        #[command(subcommand)]
        verb: TableVerb,
    },
    /// Policies of projects, namespaces and tables
    #[command(after_help = "Example: squire-registry policy set table/sales/orders retention=30d --reason audit")]
    Policy {
        #[command(subcommand)]
        verb: PolicyVerb,
    },
    /// Protection: no-drop, keep-history (legal hold), freeze
    #[command(after_help = "Example: squire-registry protection set estate freeze --reason incident")]
    Protection {
        #[command(subcommand)]
        verb: ProtectionVerb,
    },
    /// Dropped tables and namespaces
    #[command(after_help = "Example: squire-registry trash undrop table/sales/orders")]
    Trash {
        #[command(subcommand)]
        verb: TrashVerb,
    },
    /// Reasons not to maintain something
    #[command(
        after_help = "Example: squire-registry block add table/sales/orders --reason migration --until 2026-12-24"
    )]
    Block {
        #[command(subcommand)]
        verb: BlockVerb,
    },
    /// Contracts of tables, pinax.v1: what columns mean, how sensitive they are, how long rows live
    #[command(after_help = "Example: squire-registry contract validate contracts.json")]
    Contract {
        #[command(subcommand)]
        verb: ContractVerb,
    },
    /// The effective configuration
    #[command(after_help = "Example: squire-registry config show")]
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Prints the completion script of a shell
    #[command(after_help = "Example: squire-registry completion bash")]
    Completion(CompletionArgs),
}

#[derive(Subcommand)]
pub(crate) enum ConfigVerb {
    /// Every key, its value and where it comes from
    #[command(after_help = "Example: squire-registry config show")]
    Show,
}

/// Why a change is made; kept in the record.
#[derive(Args)]
pub(crate) struct Why {
    /// Why; kept in the record's history
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum ProjectVerb {
    /// Makes a project
    #[command(after_help = "Example: squire-registry project create acme")]
    Create {
        /// Its id
        project: String,
        #[command(flatten)]
        why: Why,
    },
    /// All projects
    #[command(after_help = "Example: squire-registry project list")]
    List,
    /// One project
    #[command(after_help = "Example: squire-registry project show acme")]
    Show {
        /// Its id or SUBJECT
        project: String,
    },
    /// Drops an empty project
    #[command(after_help = "Example: squire-registry project drop project/acme")]
    Drop {
        /// Its SUBJECT, project/P
        project: String,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Subcommand)]
pub(crate) enum WarehouseVerb {
    /// Makes a warehouse over a root, and marks the root
    #[command(after_help = "Example: squire-registry warehouse create main --project acme --root s3://lake")]
    Create {
        /// Its id
        warehouse: String,
        /// The project that owns it
        #[arg(long)]
        project: String,
        /// The bucket, prefix or directory
        #[arg(long, value_name = "URI")]
        root: String,
        /// Others read or clone from it: no cleanup, no reclaim
        #[arg(long)]
        not_exclusive: bool,
        /// The Lance REST namespace that names its tables; its headers are those of [storage."URL"]
        #[arg(long, value_name = "URL")]
        namespace: Option<String>,
        #[command(flatten)]
        why: Why,
    },
    /// All warehouses
    #[command(after_help = "Example: squire-registry warehouse list")]
    List,
    /// One warehouse
    #[command(after_help = "Example: squire-registry warehouse show main")]
    Show {
        /// Its id or SUBJECT
        warehouse: String,
    },
    /// Lets its tables be maintained again
    #[command(after_help = "Example: squire-registry warehouse activate main")]
    Activate {
        /// Its id or SUBJECT
        warehouse: String,
        #[command(flatten)]
        why: Why,
    },
    /// Its tables are not maintained any more
    #[command(after_help = "Example: squire-registry warehouse deactivate main --reason offboarding")]
    Deactivate {
        /// Its id or SUBJECT
        warehouse: String,
        #[command(flatten)]
        why: Why,
    },
    /// Changes which Lance REST namespace names its tables; both servers are asked first
    #[command(after_help = "Example: squire-registry warehouse set main --namespace https://catalog.example/lake\n  \
                            squire-registry warehouse set main --namespace \"\" --server-is-gone --reason \"ticket 12\"")]
    Set {
        /// Its id or SUBJECT
        warehouse: String,
        /// The namespace's URL; empty takes it away. Its headers are those of [storage."URL"]
        #[arg(long, value_name = "URL")]
        namespace: String,
        /// The present server does not answer and will not come back: changes it although nobody can say for which tables it
        /// committed. What only it knew is lost, and if it does come back, two commit for one table
        #[arg(long)]
        server_is_gone: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Drops an empty warehouse; its bytes stay
    #[command(after_help = "Example: squire-registry warehouse drop warehouse/main")]
    Drop {
        /// Its SUBJECT, warehouse/W
        warehouse: String,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Subcommand)]
pub(crate) enum NamespaceVerb {
    /// Makes a namespace
    #[command(after_help = "Example: squire-registry namespace create namespace/sales --warehouse main")]
    Create {
        /// namespace/a/b
        namespace: String,
        /// The warehouse of a top namespace; those below inherit it
        #[arg(long)]
        warehouse: Option<String>,
        #[command(flatten)]
        why: Why,
    },
    /// All namespaces
    #[command(after_help = "Example: squire-registry namespace list")]
    List,
    /// One namespace
    #[command(after_help = "Example: squire-registry namespace show namespace/sales")]
    Show {
        /// namespace/a/b
        namespace: String,
    },
    /// Drops an empty namespace, or with --cascade one with all that is in it, into the trash
    #[command(after_help = "Example: squire-registry namespace drop namespace/sales --cascade --apply")]
    Drop {
        /// namespace/a/b
        namespace: String,
        /// Also the namespaces and tables in it; prints a plan, --apply does it
        #[arg(long)]
        cascade: bool,
        /// What it holds cannot be protected in the trash and may be reclaimed at once
        #[arg(long)]
        purge: bool,
        /// Does what the plan says
        #[arg(long)]
        apply: bool,
        /// Gets past no-drop, and nothing else
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Subcommand)]
pub(crate) enum TableVerb {
    /// Registers a dataset under a name
    #[command(after_help = "Example: squire-registry table create table/sales/orders --location sales/orders.lance")]
    Create {
        /// table/a/b/t
        table: String,
        /// Where it lies, relative to its warehouse's root
        #[arg(long, value_name = "REL")]
        location: String,
        /// Its tier; goes before what the URI says
        #[arg(long)]
        tier: Option<String>,
        /// There are no bytes yet
        #[arg(long)]
        declare: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Changes tier or labels
    #[command(after_help = "Example: squire-registry table set table/sales/orders --tier gold --label hot")]
    Set {
        /// table/a/b/t
        table: String,
        /// Its tier; empty takes it away
        #[arg(long)]
        tier: Option<String>,
        /// Its labels, all of them; empty takes them away
        #[arg(long = "label", value_name = "L")]
        labels: Vec<String>,
        #[command(flatten)]
        why: Why,
    },
    /// All tables
    #[command(after_help = "Example: squire-registry table list")]
    List,
    /// One table: where it lies and what governs it
    #[command(after_help = "Example: squire-registry table show table/sales/orders")]
    Show {
        /// table/a/b/t
        table: String,
    },
    /// Gives a table another name; its bytes stay where they are
    #[command(after_help = "Example: squire-registry table rename table/sales/orders table/sales/orders_2026")]
    Rename {
        /// table/a/b/t
        table: String,
        /// table/a/b/u
        to: String,
        /// Gets past no-drop, and nothing else
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Drops a table into the trash; its bytes stay, frozen
    #[command(after_help = "Example: squire-registry table drop table/sales/orders --reason unused")]
    Drop {
        /// table/a/b/t
        table: String,
        /// It may be reclaimed at once, also what the trash holds of that name; prints a plan, --apply does it
        #[arg(long)]
        purge: bool,
        /// Does what the plan says
        #[arg(long)]
        apply: bool,
        /// Gets past no-drop, and nothing else
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Subcommand)]
pub(crate) enum PolicyVerb {
    /// Sets keys, starting from what holds now; writes a complete record
    #[command(after_help = "Example: squire-registry policy set namespace/sales retention=14d interval=6h")]
    Set {
        /// project/P, namespace/a/b or table/a/b/t
        subject: String,
        /// Keys and values, as in [policy]; an optional key is cleared with KEY=unset
        #[arg(required = true, value_name = "KEY=VALUE")]
        keys: Vec<String>,
        /// Takes effect at once, also where versions go sooner
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        why: Why,
    },
    /// What holds for a subject, and which record won
    #[command(after_help = "Example: squire-registry policy show table/sales/orders")]
    Show {
        /// The subject
        subject: String,
    },
    /// How a subject's policy differs from what it would inherit
    #[command(after_help = "Example: squire-registry policy diff table/sales/orders")]
    Diff {
        /// The subject
        subject: String,
    },
    /// Takes a subject's record away; the next one up governs
    #[command(after_help = "Example: squire-registry policy unset table/sales/orders")]
    Unset {
        /// project/P, namespace/a/b or table/a/b/t
        subject: String,
        /// Takes effect at once, also where versions go sooner
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        why: Why,
    },
    /// All policy records
    #[command(after_help = "Example: squire-registry policy list")]
    List,
}

#[derive(Subcommand)]
pub(crate) enum ProtectionVerb {
    /// Protects a subject and everything below it
    #[command(after_help = "Example: squire-registry protection set table/sales/orders keep-history --reason 'case 7'")]
    Set {
        /// The subject
        subject: String,
        /// no-drop, keep-history or freeze; each includes those before it
        #[arg(value_parser = level)]
        level: Level,
        #[command(flatten)]
        why: Why,
    },
    /// Ends the protection put on exactly this subject
    #[command(after_help = "Example: squire-registry protection unset table/sales/orders --reason 'case closed'")]
    Unset {
        /// The subject
        subject: String,
        #[command(flatten)]
        why: Why,
    },
    /// All protection
    #[command(after_help = "Example: squire-registry protection list")]
    List,
    /// What protects a subject, also from above
    #[command(after_help = "Example: squire-registry protection show table/sales/orders")]
    Show {
        /// The subject
        subject: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum TrashVerb {
    /// All that can come back, with its deadline
    #[command(after_help = "Example: squire-registry trash list")]
    List,
    /// One trash record
    #[command(after_help = "Example: squire-registry trash show 3f1c0c0e-…")]
    Show {
        /// Its id, from `trash list`
        id: String,
    },
    /// Brings a dropped table, or a namespace and all that went with it, back with protection, policy and blocks
    #[command(after_help = "Example: squire-registry trash undrop table/sales/orders")]
    Undrop {
        /// table/a/b/t or namespace/a/b
        subject: String,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Subcommand)]
pub(crate) enum BlockVerb {
    /// Files a block; with --version that version stays, and nothing is paused
    #[command(
        after_help = "Example: squire-registry block add table/sales/orders --reason 'training run' --version 42"
    )]
    Add {
        /// The subject; everything below it is blocked, too
        subject: String,
        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// When it ends by itself, as 2026-12-24T18:00:00Z or 2026-12-24
        #[arg(long, value_name = "T", value_parser = time)]
        until: Option<DateTime<Utc>>,
        /// A version that a reader needs
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// Lifts a block
    #[command(after_help = "Example: squire-registry block remove 0193f0c2-…")]
    Remove {
        /// Its id, from `block list`
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// All blocks, also those that have ended
    #[command(after_help = "Example: squire-registry block list")]
    List,
}

#[derive(Subcommand)]
pub(crate) enum ContractVerb {
    /// Prints a starting document with one table per profile; review it before it is published
    #[command(after_help = "Example: squire-registry contract init --enterprise acme --owner data_platform --steward \
                      enterprise_data --policy enterprise > contracts.json")]
    Init {
        /// The enterprise
        #[arg(long)]
        enterprise: String,
        /// Who owns the tables
        #[arg(long)]
        owner: String,
        /// Who looks after their meaning
        #[arg(long)]
        steward: String,
        /// The policy that decides about reads
        #[arg(long)]
        policy: String,
    },
    /// Reads a document and names every rule that it breaks; needs no registry
    #[command(after_help = "Example: squire-registry contract validate contracts.json")]
    Validate {
        /// The document; - is standard input
        file: String,
    },
    /// Whether a document may follow another, or what is published
    #[command(after_help = "Example: squire-registry contract check next.json --current contracts.json")]
    Check {
        /// The document that is proposed; - is standard input
        file: String,
        /// The document that it would replace; default: what is published
        #[arg(long, value_name = "FILE")]
        current: Option<String>,
    },
    /// What publishing a document would change, table by table; writes nothing
    #[command(after_help = "Example: squire-registry contract plan next.json")]
    Plan {
        /// The document; - is standard input
        file: String,
    },
    /// Publishes a document on the condition that what it replaces is what was reviewed
    #[command(
        after_help = "Example: squire-registry contract publish next.json --previous sha256:4c1f… --reason 'ticket 7'"
    )]
    Publish {
        /// The document; - is standard input
        file: String,
        /// The digest that it replaces, from `contract plan`; none for the first
        #[arg(long, value_name = "DIGEST")]
        previous: Option<String>,
        /// The date or timestamp that tells how old the rows of a table are
        #[arg(long = "retention-column", value_name = "TABLE=COLUMN")]
        retention_columns: Vec<String>,
        #[command(flatten)]
        why: Why,
    },
    /// What is published; with an enterprise its whole document
    #[command(after_help = "Example: squire-registry contract show acme -o json")]
    Show {
        /// The enterprise
        enterprise: Option<String>,
    },
    /// A page of the tables that a purpose may see
    #[command(after_help = "Example: squire-registry contract discover --purpose analytics")]
    Discover {
        /// A purpose that the principal may declare; several: tables that allow one of them
        #[arg(long = "purpose", value_name = "P", required = true)]
        purposes: Vec<String>,
        /// Where to go on: `next` of the page before
        #[arg(long, value_name = "CURSOR")]
        page: Option<String>,
        /// The enterprise; may be left out where there is one
        #[arg(long)]
        enterprise: Option<String>,
        /// The most sensitive that the principal may see (public, internal, confidential, restricted); default: each table's own
        #[arg(long, value_parser = classification)]
        clearance: Option<Classification>,
        /// The policy that decides; every table of the page must be bound to it
        #[arg(long, value_name = "POLICY@REVISION", value_parser = binding)]
        policy: Option<(String, u64)>,
    },
}

fn classification(text: &str) -> Result<Classification, String> {
    text.parse().map_err(|_| "write public, internal, confidential or restricted".to_owned())
}

fn binding(text: &str) -> Result<(String, u64), String> {
    text.rsplit_once('@')
        .and_then(|(policy, revision)| Some((policy.to_owned(), revision.parse().ok()?)))
        .ok_or_else(|| "write POLICY@REVISION, like enterprise@1".to_owned())
}

fn level(text: &str) -> Result<Level, String> {
    text.parse().map_err(|_| "write no-drop, keep-history or freeze".to_owned())
}

fn time(text: &str) -> Result<DateTime<Utc>, String> {
    squire_registry::parse_time(text).ok_or_else(|| "write 2026-12-24T18:00:00Z or 2026-12-24".to_owned())
}
