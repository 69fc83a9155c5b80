//! Who owns a dataset's HEAD (design, "Authority"). What is not `Linear` is recognised and left alone, with its reason.

use lance_table::feature_flags::{can_read_dataset, can_write_dataset};

use crate::manifest::Facts;

/// The owner of HEAD.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// Lance: the highest attached version is HEAD.
    Linear,
    /// A namespace commits for it.
    Managed {
        /// Whether it is a directory namespace, whose versions are the files of `_versions/` and nothing else.
        directory: bool,
    },
    /// A graph pins detached versions (OmniGraph).
    Graph {
        /// What gave it away.
        mark: String,
    },
    /// Detached manifests, owner unknown.
    Detached {
        /// How many.
        manifests: usize,
    },
    /// Contradictory marks, staging manifests without a known external store, or unknown feature flags.
    Unknown {
        /// Why.
        why: String,
        /// Whether it is the feature flags.
        feature_flags: bool,
    },
}

impl Authority {
    /// The stable name of FACES.
    pub fn as_str(&self) -> &'static str {
        match self {
            Authority::Linear => "linear",
            Authority::Managed { .. } => "managed",
            Authority::Graph { .. } => "graph",
            Authority::Detached { .. } => "detached",
            Authority::Unknown { .. } => "unknown",
        }
    }
}

/// What the layout says beside the manifest.
#[derive(Debug, Clone, Default)]
pub struct Marks {
    /// Detached manifests listed.
    pub detached: usize,
    /// Staging manifests listed (`N.manifest-<uuid>`).
    pub staging: usize,
    /// The parent directory's name, and whether a sibling `__manifest` of the parent exists.
    pub graph_neighbour: bool,
    /// What a namespace says of it.
    pub catalogued: Catalogued,
}

/// What a namespace says of a dataset, as far as its owner depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Catalogued {
    /// Nothing that concerns its versions.
    #[default]
    Not,
    /// It commits them, and agrees with the bucket about the newest.
    Managed {
        /// Whether it is a directory namespace.
        directory: bool,
    },
    /// It cannot be told.
    Unclear {
        /// Why.
        why: String,
    },
}

/// Judges from HEAD and the marks. Pure.
pub fn judge(head: &Facts, marks: &Marks) -> Authority {
    let manifest = &head.manifest;
    if !can_read_dataset(manifest.reader_feature_flags) || !can_write_dataset(manifest.writer_feature_flags) {
        return Authority::Unknown {
            why: format!(
                "feature flags this build does not know (reader {:#x}, writer {:#x})",
                manifest.reader_feature_flags, manifest.writer_feature_flags
            ),
            feature_flags: true,
        };
    }
    if let Some(mark) = graph_mark(head) {
        return Authority::Graph { mark };
    }
    if marks.graph_neighbour {
        return Authority::Graph { mark: "it lies in nodes/ or edges/ beside a __manifest".into() };
    }
    match &marks.catalogued {
        Catalogued::Not => {}
        Catalogued::Managed { directory } => return Authority::Managed { directory: *directory },
        Catalogued::Unclear { why } => return Authority::Unknown { why: why.clone(), feature_flags: false },
    }
    if marks.staging > 0 {
        return Authority::Unknown {
            why: format!("{} staging manifests without a known external store", marks.staging),
            feature_flags: false,
        };
    }
    if marks.detached > 0 {
        return Authority::Detached { manifests: marks.detached };
    }
    Authority::Linear
}

/// The signs of facts/omnigraph 1.6: schema metadata, registry columns, or a transaction property of its own.
fn graph_mark(head: &Facts) -> Option<String> {
    let schema = &head.manifest.schema;
    if let Some(key) = schema.metadata.keys().find(|k| k.starts_with("omnigraph:")) {
        return Some(format!("schema metadata {key}"));
    }
    let has = |name: &str| schema.fields.iter().any(|f| f.name == name);
    if has("stable_table_id") && has("table_incarnation_id") {
        return Some("columns stable_table_id and table_incarnation_id".into());
    }
    graph_property(head).map(|key| format!("transaction property {key}"))
}

/// The property by which a transaction says that a graph made it.
pub(crate) fn graph_property(facts: &Facts) -> Option<&str> {
    facts.properties.keys().map(String::as_str).find(|key| key.starts_with("omnigraph."))
}
