//! Manifests edited by hand into what no release at hand writes.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use lance_table::format::pb;
use prost::Message;

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why.to_string())
}

/// A length-prefixed message at `at`, and where it ends.
fn message<M: Message + Default>(bytes: &[u8], at: usize) -> Result<(M, usize)> {
    let head = bytes.get(at..at + 4).ok_or_else(|| bad("a section starts beyond the file"))?;
    let len = u32::from_le_bytes(head.try_into().map_err(|_| bad("a section is cut"))?) as usize;
    let body = bytes.get(at + 4..at + 4 + len).ok_or_else(|| bad("a section is cut"))?;
    Ok((M::decode(body).map_err(|e| bad(&e.to_string()))?, at + 4 + len))
}

fn append<M: Message>(out: &mut Vec<u8>, message: &M) -> Result<u64> {
    let at = out.len() as u64;
    let encoded = message.encode_to_vec();
    out.extend(u32::try_from(encoded.len()).map_err(|e| bad(&e.to_string()))?.to_le_bytes());
    out.extend(encoded);
    Ok(at)
}

/// Lets an index in one local manifest be of another type, by its details' type URL: an index of a later release, say.
///
/// # Errors
/// When the file cannot be read, decoded or written, or has no such index.
pub fn set_index_type(manifest: &Path, index: &str, type_url: &str) -> Result<()> {
    let bytes = std::fs::read(manifest)?;
    // What follows the manifest is the trailer: position, format version, magic.
    let trailer = bytes.len().checked_sub(16).ok_or_else(|| bad("the manifest is cut"))?;
    let at = i64::from_le_bytes(bytes[trailer..trailer + 8].try_into().map_err(|_| bad("the trailer is cut"))?);
    let at = usize::try_from(at).map_err(|_| bad("the trailer's position is negative"))?;
    let (mut body, _) = message::<pb::Manifest>(&bytes, at)?;
    let section = body.index_section.ok_or_else(|| bad("it has no index"))?;
    let section = usize::try_from(section).map_err(|_| bad("a position beyond the address space"))?;
    let (mut indices, _) = message::<pb::IndexSection>(&bytes, section)?;
    let named = indices.indices.iter_mut().filter(|i| i.name == index).filter_map(|i| i.index_details.as_mut());
    let mut found = false;
    for details in named {
        type_url.clone_into(&mut details.type_url);
        found = true;
    }
    if !found {
        return Err(bad("it has no such index"));
    }
    let mut out = bytes[..at].to_vec();
    body.index_section = Some(append(&mut out, &indices)?);
    let position = append(&mut out, &body)?;
    out.extend(position.to_le_bytes());
    out.extend(&bytes[trailer + 8..]);
    std::fs::write(manifest, out)
}
