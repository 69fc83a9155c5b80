//! What was asked for: read from a message or a command line, without looking at any table.

use squire_lake::build::{IndexKind, Refusal, Spec};
use squire_registry::Subject;
use squire_service::bus::Key;
use squire_service::bus::data::{BuildMode, IndexBuild};

/// A request whose words make sense.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The table.
    pub table: Subject,
    /// The index.
    pub spec: Spec,
    /// What to do where an index of its name exists, and where rows are too few.
    pub mode: BuildMode,
    /// The request as a message has it, names in their printed form.
    pub message: IndexBuild,
}

/// Why a message is no request at all.
#[derive(Debug, Clone, PartialEq)]
pub enum Wrong {
    /// It names no table.
    Table(String),
    /// Its type or parameters are none that exist.
    Index(Refusal),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Table(why) => f.write_str(why),
            Self::Index(refusal) => refusal.fmt(f),
        }
    }
}

impl Ask {
    /// Reads a message. It names a table, and no place: a location, also one dressed as `dataset/<URI>`, is none (invariant
    /// `messages_carry_names`).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(message: &IndexBuild) -> Result<Self, Wrong> {
        let wrong = |why: String| Wrong::Table(why);
        let table: Subject = message.table.parse().map_err(|e: squire_registry::Error| wrong(e.to_string()))?;
        if !matches!(table, Subject::Table(_)) {
            let kind = table.kind();
            return Err(wrong(format!("a request names a registered table, as table/a/b/t, and this is a {kind}")));
        }
        let kind = IndexKind::parse(&message.index_type).map_err(Wrong::Index)?;
        kind.check_params(&message.params).map_err(Wrong::Index)?;
        let message = IndexBuild { table: table.to_string(), index_type: kind.as_str().to_string(), ..message.clone() };
        let spec = Spec {
            columns: message.columns.clone(),
            kind,
            name: message.name.clone(),
            params: message.params.clone(),
            replace: message.mode == BuildMode::Replace,
        };
        Ok(Self { table, spec, mode: message.mode, message })
    }

    /// The key under which at most one message is queued.
    pub fn key(&self) -> Key {
        let m = &self.message;
        Key::of_index(&m.table, &m.columns, &m.index_type, m.name.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: serde_json::Value) -> Result<Ask, String> {
        let message: IndexBuild = serde_json::from_value(value).map_err(|e| e.to_string())?;
        Ask::of(&message).map_err(|e| e.to_string())
    }

    #[test]
    fn a_message_names_a_table_and_no_place() {
        let ask = read(json!({ "table": "a$b$t", "columns": ["id"], "type": "btree" })).expect("read");
        assert_eq!(ask.message.table, "table/a/b/t");
        assert_eq!(ask.message.index_type, "BTREE");
        for place in [
            "dataset/s3://elsewhere/t",
            "dataset/file%3A%2F%2F%2Fetc",
            "s3://elsewhere/t",
            "/etc/passwd",
            "../../t",
            "table/../t",
            "table/a//t",
            "warehouse/w",
            "estate",
            "",
        ] {
            assert!(read(json!({ "table": place, "columns": ["id"], "type": "BTREE" })).is_err(), "{place:?}");
        }
    }

    #[test]
    fn parameters_are_those_of_the_type() {
        let with = |index_type: &str, params: serde_json::Value| {
            read(json!({ "table": "table/t", "columns": ["c"], "type": index_type, "params": params }))
        };
        for (index_type, params) in [
            ("BTREE", json!({})),
            ("IVF_PQ", json!({ "metric": "cosine", "num_partitions": 4, "num_sub_vectors": 8, "sample_rate": 64 })),
            ("IVF_HNSW_SQ", json!({ "m": 16, "ef_construction": 100 })),
            ("INVERTED", json!({ "base_tokenizer": "whitespace", "stem": false, "with_position": true })),
            ("JSON", json!({ "path": "$.a.b" })),
            ("fts", json!({ "language": "German" })),
        ] {
            let read = with(index_type, params.clone());
            assert!(read.is_ok(), "{index_type} {params}: {read:?}");
        }
        for (index_type, params, says) in [
            ("BTREE", json!({ "storage_options": {} }), "zone_size"),
            ("BITMAP", json!({ "x": 1 }), "BITMAP takes no parameters"),
            ("IVF_PQ", json!({ "num_partitions": 0 }), "1 to 65536"),
            ("IVF_PQ", json!({ "num_partitions": 1e30 }), "1 to 65536"),
            ("IVF_PQ", json!({ "num_bits": 7 }), "4 or 8"),
            ("IVF_FLAT", json!({ "metric": "manhattan" }), "l2 | cosine | dot | hamming"),
            ("IVF_FLAT", json!({ "num_sub_vectors": 4 }), "num_partitions"),
            ("INVERTED", json!({ "base_tokenizer": "lindera/../../../etc" }), "simple | whitespace"),
            ("INVERTED", json!({ "memory_limit": 1 }), "base_tokenizer"),
            ("INVERTED", json!({ "language": "Klingon" }), "fit together"),
            ("INVERTED", json!({ "custom_stop_words": "the" }), "words"),
            ("JSON", json!({}), "path"),
            ("JSON", json!({ "path": "$.a", "target_index_type": "inverted" }), "btree | bitmap"),
            ("ZONEMAP", json!({ "rows_per_zone": -1 }), "1 to"),
            ("HNSW", json!({}), "IVF_HNSW_SQ"),
            ("__lance_frag_reuse", json!({}), "BTREE"),
        ] {
            let told = with(index_type, params.clone()).expect_err("refused");
            assert!(told.contains(says), "{index_type} {params}: {told}");
        }
    }

    #[test]
    fn one_index_has_one_key_however_it_is_spelt() {
        let key = |table: &str, index_type: &str| {
            read(json!({ "table": table, "columns": ["id"], "type": index_type })).expect("read").key()
        };
        assert_eq!(key("a$b$t", "btree"), key("table/a/b/t", "BTREE"));
        assert_ne!(key("table/a/b/t", "BTREE"), key("table/a/b/t", "BITMAP"));
    }
}
