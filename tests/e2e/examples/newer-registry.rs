//! Writes what a later build's `squire-registry` would: a freeze at a record level that today's build does not read.
//! usage: newer-registry ROOT STORAGE-OPTIONS-AS-JSON freeze|thaw SUBJECT

use std::collections::HashMap;
use std::error::Error;

use squire_registry::{Level, Registry, Subject};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    squire_registry::stand_in_for_level(2);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, options, verb, subject] = arguments.as_slice() else { return Err("four arguments".into()) };
    let options: HashMap<String, String> = serde_json::from_str(options)?;
    let registry = Registry::open(root, &options).await?;
    let subject: Subject = subject.parse()?;
    match verb.as_str() {
        "freeze" => registry.protect(&subject, Level::Freeze, Some("a later build says so")).await?,
        _ => registry.unprotect(&subject, Some("it is over")).await?,
    };
    Ok(())
}
