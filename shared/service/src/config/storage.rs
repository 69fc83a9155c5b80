//! `[storage]`: object-store options, per bucket where a bucket differs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Options of one object store, by the names that Lance takes, in lower case.
pub type StorageOptions = HashMap<String, String>;

/// Options that belong together: a bucket that names one of them inherits none of them.
const CREDENTIALS: [&str; 24] = [
    "aws_access_key_id",
    "access_key_id",
    "aws_secret_access_key",
    "secret_access_key",
    "aws_session_token",
    "session_token",
    "aws_token",
    "token",
    "aws_profile",
    "azure_storage_account_key",
    "account_key",
    "azure_storage_sas_token",
    "azure_storage_sas_key",
    "sas_token",
    "sas_key",
    "azure_storage_token",
    "bearer_token",
    "azure_client_secret",
    "client_secret",
    "google_service_account",
    "google_service_account_key",
    "service_account",
    "service_account_key",
    "google_application_credentials",
];

/// Names that are common enough for a near miss to be a slip of the pen. Others pass: the list
/// of what an object store takes is Lance's and the store's, and grows.
const COMMON: [&str; 40] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_default_region",
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_allow_http",
    "aws_virtual_hosted_style_request",
    "aws_unsigned_payload",
    "aws_skip_signature",
    "aws_s3_express",
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "aws_sse_bucket_key_enabled",
    "aws_sse_customer_key_base64",
    "aws_profile",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "region",
    "endpoint",
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
    "user_agent",
    "client_max_retries",
    "client_retry_timeout",
    "download_retry_count",
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_sas_token",
    "azure_storage_endpoint",
    "azure_client_id",
    "azure_client_secret",
    "google_service_account",
    "google_service_account_key",
    "google_application_credentials",
];

/// The options of `[storage]`: those for every store, those of `[storage."s3://bucket"]` and
/// those of `[storage.delete]`.
#[derive(Clone, Default, PartialEq)]
pub struct Storage {
    common: BTreeMap<String, String>,
    delete: Option<BTreeMap<String, String>>,
    prefixes: BTreeMap<String, PrefixOptions>,
}

#[derive(Clone, Default, PartialEq)]
struct PrefixOptions {
    options: BTreeMap<String, String>,
    delete: Option<BTreeMap<String, String>>,
}

impl Storage {
    /// The options for `uri`: those for every store, overlaid by the table with the longest
    /// prefix of `uri`. A prefix ends where a path segment ends (`s3://a` is none of `s3://ab`).
    /// A table that names any credential inherits no credential.
    pub fn options_for(&self, uri: &str) -> StorageOptions {
        let mut options: StorageOptions = self.common.clone().into_iter().collect();
        if let Some(prefix) = self.longest(uri) {
            overlay(&mut options, &prefix.options);
        }
        options
    }

    /// The options that cleanup and reclaim use for `uri`, or `None` where no `delete` table
    /// applies and they use those of everybody.
    pub fn delete_options_for(&self, uri: &str) -> Option<StorageOptions> {
        let own = self.longest(uri).and_then(|p| p.delete.as_ref());
        let delete = own.or(self.delete.as_ref())?;
        let mut options = self.options_for(uri);
        overlay(&mut options, delete);
        Some(options)
    }

    /// Why nothing may be deleted at `uri`, where a `delete` table applies that holds no credentials: it is empty, or one of its
    /// credentials is (an environment variable that is not set, say). Then the credentials of everybody else are no stand-in.
    pub fn delete_missing(&self, uri: &str) -> Option<String> {
        let own = self.longest(uri).and_then(|p| p.delete.as_ref());
        let delete = own.or(self.delete.as_ref())?;
        let empty = delete.iter().find(|(key, value)| value.is_empty() && CREDENTIALS.contains(&key.as_str()));
        match empty {
            Some((key, _)) => Some(format!("{key} of [storage.delete] is empty")),
            None if delete.is_empty() => Some("[storage.delete] is empty".to_string()),
            None => None,
        }
    }

    /// Whether nothing at all is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn longest(&self, uri: &str) -> Option<&PrefixOptions> {
        let uri = plain(uri);
        self.prefixes
            .iter()
            .map(|(prefix, options)| (plain(prefix), options))
            .filter(|(prefix, _)| is_prefix(prefix, uri))
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, options)| options)
    }
}

/// The URI without `file://` and without trailing slashes, so that both spellings of a local
/// path compare equal.
fn plain(uri: &str) -> &str {
    let uri = uri.strip_prefix("file://").unwrap_or(uri);
    // A bare scheme (`s3://`) keeps its slashes: it is the prefix of every bucket.
    if uri.ends_with("://") { uri } else { uri.trim_end_matches('/') }
}

fn is_prefix(prefix: &str, uri: &str) -> bool {
    uri.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/'))
}

fn overlay(options: &mut StorageOptions, over: &BTreeMap<String, String>) {
    if over.keys().any(|key| CREDENTIALS.contains(&key.as_str())) {
        options.retain(|key, _| !CREDENTIALS.contains(&key.as_str()));
    }
    options.extend(over.iter().map(|(k, v)| (k.clone(), v.clone())));
}

impl fmt::Debug for Storage {
    /// Names only: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage")
            .field("common", &self.common.keys())
            .field("delete", &self.delete.as_ref().map(|d| d.keys()))
            .field("prefixes", &self.prefixes.keys())
            .finish()
    }
}

/// One value below `[storage]`: a scalar, or a table.
enum Node {
    Scalar(String),
    Table(BTreeMap<String, Node>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, number or boolean (an object-store option) or a table")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Node, E> {
                Ok(Node::Scalar(v.to_owned()))
            }
            fn visit_bool<E: de::Error>(self, v: bool) -> Result<Node, E> {
                Ok(Node::Scalar(v.to_string()))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Node, E> {
                Ok(Node::Scalar(v.to_string()))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Node, E> {
                Ok(Node::Scalar(v.to_string()))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Node, E> {
                Ok(Node::Scalar(v.to_string()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut table = BTreeMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    table.insert(key, value);
                }
                Ok(Node::Table(table))
            }
        }
        d.deserialize_any(V)
    }
}

impl<'de> Deserialize<'de> for Storage {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Node::Table(table) = Node::deserialize(d)? else {
            return Err(de::Error::custom("expected a table of object-store options"));
        };
        let mut storage = Storage::default();
        for (key, node) in table {
            match node {
                Node::Scalar(value) => {
                    storage.common.insert(option_name(&key).map_err(de::Error::custom)?, value);
                }
                Node::Table(t) if key.eq_ignore_ascii_case("delete") => {
                    storage.delete = Some(scalars(t, "storage.delete").map_err(de::Error::custom)?);
                }
                Node::Table(t) if looks_like_uri(&key) => {
                    let options = prefix(t, &key).map_err(de::Error::custom)?;
                    storage.prefixes.insert(key, options);
                }
                Node::Table(_) => {
                    return Err(de::Error::custom(format!(
                        "unknown table `{key}`: expected [storage.delete] or a quoted URI, \
                         such as [storage.\"s3://bucket\"]"
                    )));
                }
            }
        }
        Ok(storage)
    }
}

fn looks_like_uri(key: &str) -> bool {
    key.contains("://") || key.starts_with('/') || key.starts_with("./")
}

fn prefix(table: BTreeMap<String, Node>, uri: &str) -> Result<PrefixOptions, String> {
    let mut out = PrefixOptions::default();
    let mut rest = BTreeMap::new();
    for (key, node) in table {
        match node {
            Node::Table(t) if key.eq_ignore_ascii_case("delete") => {
                out.delete = Some(scalars(t, &format!("storage.\"{uri}\".delete"))?);
            }
            node => {
                rest.insert(key, node);
            }
        }
    }
    out.options = scalars(rest, &format!("storage.\"{uri}\""))?;
    Ok(out)
}

fn scalars(table: BTreeMap<String, Node>, at: &str) -> Result<BTreeMap<String, String>, String> {
    table
        .into_iter()
        .map(|(key, node)| match node {
            Node::Scalar(value) => Ok((option_name(&key)?, value)),
            Node::Table(_) => Err(format!("`{key}` in [{at}] is a table; expected an option")),
        })
        .collect()
}

/// Lower case, as Lance compares them; a near miss of a common name is refused, because an
/// option that no store knows is silently ignored further down.
fn option_name(key: &str) -> Result<String, String> {
    let name = key.to_ascii_lowercase();
    if COMMON.contains(&name.as_str()) {
        return Ok(name);
    }
    let near = COMMON
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, &name), known))
        .min()
        .filter(|(distance, known)| *distance <= 2 && known.len() >= 8);
    match near {
        // Not a slip: names that differ from a common one by a whole word's worth are too far
        // away for this arm, and what is near but real is listed above.
        Some((_, known)) => Err(format!("unknown option `{key}`; did you mean `{known}`?")),
        None => Ok(name),
    }
}

impl Serialize for Storage {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for (key, value) in &self.common {
            map.serialize_entry(key, value)?;
        }
        if let Some(delete) = &self.delete {
            map.serialize_entry("delete", delete)?;
        }
        for (key, value) in &self.prefixes {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl Serialize for PrefixOptions {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for (key, value) in &self.options {
            map.serialize_entry(key, value)?;
        }
        if let Some(delete) = &self.delete {
            map.serialize_entry("delete", delete)?;
        }
        map.end()
    }
}
