//! Everything of Squire that touches a Lance dataset.
//!
//! This is the only crate that imports `lance*`. Each module is one heading of the design:
//!
//! | module | what |
//! |---|---|
//! | [`uri`] | one canonical URI per dataset |
//! | [`handle`] | the bounded session, storage options, opening |
//! | [`discover`] | which directories are datasets |
//! | [`tier`] | what the URI says about the tier |
//! | [`manifest`] | one manifest, read in one request, reduced to facts |
//! | [`listing`] | the objects under a dataset, by kind |
//! | [`look`] | all that is known of one dataset before a plan |
//! | [`refs`] | who names which file: keep-set and clone graph |
//! | [`classes`] | one class for every object under a dataset |
//! | [`examine`] | listing, look, and the second look before anything is called orphan or missing |
//! | [`oracle`] | what a dataset's directory may hold after a test |
//! | [`authority`] | who owns the dataset's HEAD |
//! | [`namespace`] | catalogs that name datasets |
//! | [`health`] | does every file that HEAD names exist |
//! | [`hook`] | the table's own clean-up hook, which other writers run |
//! | [`known`] | one request where a dataset has not moved |
//! | [`index`] | the state of every index |
//! | [`stamp`] | the mark that our commits carry |
//! | [`contain`] | panics stay with the dataset |
//! | [`commit`] | our own commits, stamped and without the table's hook |
//! | [`compact`] | execute compaction tasks and commit them |
//! | [`fold`] | fold new rows into indices and commit |
//! | [`build`] | build an index on request and commit it |
//! | [`verify`] | the same answers before and after |
//! | [`erasure`] | what still holds deleted values |
//! | [`retention`] | which versions may go, and what keeps the others |
//! | [`stored`] | what the bytes of a dataset are, and who holds them |
//! | [`clean`] | version clean-up by our own plan, in chunks |
//! | [`rate`] | limits per second |
//! | [`quarantine`] | moving what nobody names away, and back |
//! | [`damage`] | which versions still read, and what to restore |
//! | [`contract`] | a contract as a schema, and whether the live dataset agrees |
//! | [`writers`] | is somebody else at long work |
//! | [`sample`], [`faults`] | datasets and faults for the demo and for tests |

// Lance's futures, nested in ours, are deeper than the compiler's default allows.
#![recursion_limit = "256"]

pub mod authority;
pub mod build;
pub mod classes;
pub mod clean;
pub mod clients;
pub mod commit;
pub mod compact;
pub mod contain;
pub mod contract;
pub mod damage;
pub mod discover;
pub mod erasure;
mod error;
pub mod examine;
pub mod faults;
pub mod fold;
pub mod handle;
pub mod health;
pub mod hook;
pub mod index;
pub mod known;
mod links;
pub mod listing;
pub mod look;
pub mod manifest;
pub mod namespace;
pub mod oracle;
pub mod quarantine;
pub mod rate;
pub mod refs;
pub mod retention;
pub mod sample;
pub mod stamp;
pub mod stored;
pub mod tier;
pub mod uri;
pub mod verify;
pub mod writers;

pub use error::{Error, Kind, Result};
pub use handle::Lake;

/// The Lance release this build links, for reports and stamps.
pub const LANCE_VERSION: &str = "14.0.2";
