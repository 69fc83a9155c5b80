//! Contracts of enterprise tables, wire version `pinax.v1`: what a column means, who answers for it, how sensitive it is, and
//! which revision a reader expects.
//!
//! A [`Document`] is what people write; [`Contracts`] is what is trusted: it can only be made by validation, and never
//! changes. Its [`Contracts::digest`] names the content, not who approved it. [`check_successor`] says whether one may follow
//! another, [`crate::Registry::contract_publish`] puts it into the estate on the condition that the predecessor is the one
//! that was reviewed, and [`discover`] shows of it what a purpose may see.
//!
//! Everything here is bounded, pure apart from publishing, and refuses what it does not know: a misspelled protection is
//! an error and not an ignored comment. Each [`Refusal`] names its [`Rule`].
//!
//! The rules are those of the contract protocol's description (seed 004, sections 3 to 8.1).

mod ceiling;
mod discover;
mod model;
mod pins;
mod profiles;
mod publish;
mod rules;
mod successor;
mod validate;

pub use discover::{Discovered, DiscoveredColumn, PAGE, Page, Principal, discover};
pub use model::{Classification, Column, DataType, Document, Metadata, Nullability, Profile, Security, Table, VERSION};
pub use pins::{FIELD_ID, PIN_CONTRACT, PIN_DIGEST, PIN_REVISION, Pins};
pub use profiles::{standard_columns, starting_document};
pub use publish::{Action, ContractRecord, Publication, TablePlan};
pub use rules::{Refusal, Refusals, Rule};
pub use successor::check_successor;
pub use validate::{Contracts, MAX_BYTES};
