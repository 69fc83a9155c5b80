//! What Squire's commits say of themselves, read from the bytes of a dataset and not through our own reader.

use squire_test_support::Objects;

/// Version and `run/step/slice` of every version whose transaction carries a stamp. `objects`: all of a dataset.
pub(crate) fn of(objects: &Objects) -> Vec<(u64, String)> {
    let mut out = Vec::new();
    for (path, manifest) in objects {
        let name = path.strip_prefix("_versions/").and_then(|n| n.strip_suffix(".manifest"));
        let Some(number) = name.and_then(|n| n.parse::<u64>().ok()) else { continue };
        let version = u64::MAX - number;
        let Some(transaction) = transaction(manifest).and_then(|name| objects.get(&name)) else { continue };
        let text = |key: &str| property(transaction, key);
        if let (Some(run), Some(step), Some(slice)) = (text("squire.run"), text("squire.step"), text("squire.slice")) {
            out.push((version, format!("{run}/{step}/{slice}")));
        }
    }
    out
}

/// The path of the transaction file that a manifest names: `<version>-<uuid>.txn`.
fn transaction(manifest: &[u8]) -> Option<String> {
    let end = manifest.windows(4).rposition(|w| w == b".txn")?;
    let uuid = end.checked_sub(36)?;
    let dash = uuid.checked_sub(1).filter(|at| manifest[*at] == b'-')?;
    let digits = manifest[..dash].iter().rev().take_while(|b| b.is_ascii_digit()).count();
    // The length of the name stands before it and may be a digit, too: the name's length tells.
    let whole = |n: &usize| usize::from(manifest[dash - n - 1]) == n + 1 + 36 + 4;
    let digits = (1..=digits).find(whole)?;
    let name = std::str::from_utf8(&manifest[dash - digits..end + 4]).ok()?;
    Some(format!("_transactions/{name}"))
}

/// The value of a property: an entry of a map from text to text in protobuf.
fn property(transaction: &[u8], key: &str) -> Option<String> {
    let mark = [key.as_bytes(), b"\x12"].concat();
    let at = transaction.windows(mark.len()).position(|w| w == mark)? + mark.len();
    let length = usize::from(*transaction.get(at)?);
    String::from_utf8(transaction.get(at + 1..at + 1 + length)?.to_vec()).ok()
}
