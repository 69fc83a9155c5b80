//! The index types that can be asked for, and the parameters of each.

use lance_index::IndexType;
use serde_json::{Map, Value};

use super::{Reason, Refusal};

/// An index type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum IndexKind {
    /// Sorted values: equality and ranges.
    BTree,
    /// One bitmap per value: few distinct values.
    Bitmap,
    /// Values within lists.
    LabelList,
    /// Minimum and maximum per zone.
    ZoneMap,
    /// A Bloom filter per zone.
    BloomFilter,
    /// Pieces of text: `contains`.
    NGram,
    /// Full text.
    Inverted,
    /// One path within JSON documents.
    Json,
    /// Boxes around geometries.
    RTree,
    /// Vectors as they are, in partitions.
    IvfFlat,
    /// Product quantisation.
    IvfPq,
    /// Scalar quantisation.
    IvfSq,
    /// RaBit quantisation.
    IvfRq,
    /// A graph per partition over plain vectors.
    IvfHnswFlat,
    /// A graph per partition, product quantisation.
    IvfHnswPq,
    /// A graph per partition, scalar quantisation.
    IvfHnswSq,
}

use IndexKind as K;

impl IndexKind {
    /// All of them.
    pub const ALL: [Self; 16] = [
        K::BTree,
        K::Bitmap,
        K::LabelList,
        K::ZoneMap,
        K::BloomFilter,
        K::NGram,
        K::Inverted,
        K::Json,
        K::RTree,
        K::IvfFlat,
        K::IvfPq,
        K::IvfSq,
        K::IvfRq,
        K::IvfHnswFlat,
        K::IvfHnswPq,
        K::IvfHnswSq,
    ];

    /// The name, as Lance and reports have it.
    pub fn as_str(self) -> &'static str {
        match self {
            K::BTree => "BTREE",
            K::Bitmap => "BITMAP",
            K::LabelList => "LABEL_LIST",
            K::ZoneMap => "ZONEMAP",
            K::BloomFilter => "BLOOMFILTER",
            K::NGram => "NGRAM",
            K::Inverted => "INVERTED",
            K::Json => "JSON",
            K::RTree => "RTREE",
            K::IvfFlat => "IVF_FLAT",
            K::IvfPq => "IVF_PQ",
            K::IvfSq => "IVF_SQ",
            K::IvfRq => "IVF_RQ",
            K::IvfHnswFlat => "IVF_HNSW_FLAT",
            K::IvfHnswPq => "IVF_HNSW_PQ",
            K::IvfHnswSq => "IVF_HNSW_SQ",
        }
    }

    /// Reads a name; case, `_` and `-` do not count, and `FTS` is `INVERTED`.
    ///
    /// # Errors
    /// [`Reason::UnknownType`] with the names that are accepted.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let plain = |t: &str| t.chars().filter(|c| !matches!(c, '_' | '-')).collect::<String>().to_ascii_uppercase();
        let wanted = match plain(text).as_str() {
            "FTS" => "INVERTED".to_string(),
            other => other.to_string(),
        };
        K::ALL.into_iter().find(|k| plain(k.as_str()) == wanted).ok_or_else(|| {
            let names: Vec<&str> = K::ALL.iter().map(|k| k.as_str()).collect();
            let shown: String = text.chars().take(40).collect();
            Refusal::new(Reason::UnknownType, format!("there is no index type {shown:?}"), names.join(", "))
        })
    }

    /// Whether it is over vectors.
    pub fn is_vector(self) -> bool {
        self.as_str().starts_with("IVF_")
    }

    /// Whether product quantisation, which has to be trained on enough vectors, is part of it.
    pub fn has_pq(self) -> bool {
        matches!(self, K::IvfPq | K::IvfHnswPq)
    }

    /// Whether it holds a graph.
    pub fn has_graph(self) -> bool {
        matches!(self, K::IvfHnswFlat | K::IvfHnswPq | K::IvfHnswSq)
    }

    pub(super) fn lance(self) -> IndexType {
        match self {
            K::BTree => IndexType::BTree,
            K::Bitmap => IndexType::Bitmap,
            K::LabelList => IndexType::LabelList,
            K::ZoneMap => IndexType::ZoneMap,
            K::BloomFilter => IndexType::BloomFilter,
            K::NGram => IndexType::NGram,
            K::Inverted => IndexType::Inverted,
            // The wrapper has no type of its own: the scalar type with the plugin's name.
            K::Json => IndexType::Scalar,
            K::RTree => IndexType::RTree,
            K::IvfFlat => IndexType::IvfFlat,
            K::IvfPq => IndexType::IvfPq,
            K::IvfSq => IndexType::IvfSq,
            K::IvfRq => IndexType::IvfRq,
            K::IvfHnswFlat => IndexType::IvfHnswFlat,
            K::IvfHnswPq => IndexType::IvfHnswPq,
            K::IvfHnswSq => IndexType::IvfHnswSq,
        }
    }

    fn keys(self) -> Vec<(&'static str, Shape)> {
        match self {
            K::BTree => vec![("zone_size", Shape::Int(64, 1 << 20))],
            K::Bitmap | K::LabelList | K::NGram => vec![],
            K::ZoneMap => vec![("rows_per_zone", Shape::Int(1, 1 << 24))],
            K::BloomFilter => {
                vec![("number_of_items", Shape::Int(1, 1 << 24)), ("probability", Shape::Share)]
            }
            K::Inverted => INVERTED.to_vec(),
            K::Json => vec![("path", Shape::Text(1024)), ("target_index_type", Shape::Word(&JSON_TARGETS))],
            K::RTree => vec![("page_size", Shape::Int(16, 1 << 16))],
            vector => {
                let mut keys = vec![
                    ("metric", Shape::Word(&["l2", "cosine", "dot", "hamming"])),
                    ("num_partitions", Shape::Int(1, 65_536)),
                    ("sample_rate", Shape::Int(2, 65_536)),
                    ("max_iters", Shape::Int(1, 1_000)),
                ];
                if vector.has_pq() {
                    keys.push(("num_sub_vectors", Shape::Int(1, 4_096)));
                    keys.push(("num_bits", Shape::Int(4, 8)));
                }
                if vector == K::IvfRq {
                    keys.push(("num_bits", Shape::Int(1, 9)));
                }
                if vector.has_graph() {
                    keys.push(("m", Shape::Int(2, 512)));
                    keys.push(("ef_construction", Shape::Int(2, 4_096)));
                }
                keys
            }
        }
    }

    /// Looks at parameters alone: names and shapes, without any table. Pure.
    ///
    /// # Errors
    /// [`Reason::BadParams`] with what is accepted.
    pub fn check_params(self, params: &Map<String, Value>) -> Result<(), Refusal> {
        let keys = self.keys();
        let accepted = || match keys.is_empty() {
            true => format!("{} takes no parameters", self.as_str()),
            false => {
                keys.iter().map(|(name, shape)| format!("{name} ({})", shape.says())).collect::<Vec<_>>().join(", ")
            }
        };
        for (name, value) in params {
            let Some((_, shape)) = keys.iter().find(|(key, _)| key == name) else {
                let shown: String = name.chars().take(40).collect();
                let what = format!("{} has no parameter {shown:?}", self.as_str());
                return Err(Refusal::new(Reason::BadParams, what, accepted()));
            };
            if !shape.fits(value) {
                let shown: String = value.to_string().chars().take(60).collect();
                let what = format!("{shown} does not fit parameter {name} of {}", self.as_str());
                return Err(Refusal::new(Reason::BadParams, what, format!("{name}: {}", shape.says())));
            }
        }
        if self.has_pq() && params.get("num_bits").and_then(Value::as_u64).is_some_and(|b| b != 4 && b != 8) {
            return Err(Refusal::new(Reason::BadParams, "a product quantiser has 4 or 8 bits", "num_bits: 4 or 8"));
        }
        if self == K::Json && !params.contains_key("path") {
            return Err(Refusal::new(Reason::BadParams, "a JSON index needs the path it is over", accepted()));
        }
        if self == K::Inverted {
            super::params::inverted(params)?;
        }
        Ok(())
    }
}

/// The targets of a JSON index that answer questions about one scalar value.
const JSON_TARGETS: [&str; 4] = ["btree", "bitmap", "zonemap", "bloomfilter"];

/// Tokenizers that need no files on the machine that builds; those with dictionaries take a path.
const TOKENIZERS: [&str; 7] = ["simple", "whitespace", "raw", "code", "icu", "icu/split", "ngram"];

const INVERTED: [(&str, Shape); 20] = [
    ("analyzer", Shape::Word(&["text", "code"])),
    ("base_tokenizer", Shape::Word(&TOKENIZERS)),
    ("lance_tokenizer", Shape::Word(&["text", "json"])),
    ("document_granularity", Shape::Text(40)),
    ("language", Shape::Text(40)),
    ("with_position", Shape::Bool),
    ("max_token_length", Shape::IntOrNull(1, 65_536)),
    ("lower_case", Shape::Bool),
    ("stem", Shape::Bool),
    ("remove_stop_words", Shape::Bool),
    ("custom_stop_words", Shape::Words(10_000)),
    ("ascii_folding", Shape::Bool),
    ("min_ngram_length", Shape::Int(1, 64)),
    ("max_ngram_length", Shape::Int(1, 64)),
    ("prefix_only", Shape::Bool),
    ("block_size", Shape::Int(128, 256)),
    ("split_identifiers", Shape::Bool),
    ("split_on_numerics", Shape::Bool),
    ("preserve_original", Shape::Bool),
    ("index_operators", Shape::Bool),
];

/// What a parameter's value looks like.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Int(u64, u64),
    IntOrNull(u64, u64),
    Bool,
    /// Between 0 and 1, neither included.
    Share,
    Word(&'static [&'static str]),
    /// Of at most so many bytes.
    Text(usize),
    /// A list of at most so many words.
    Words(usize),
}

impl Shape {
    fn fits(self, value: &Value) -> bool {
        let text = |v: &Value, longest: usize| {
            v.as_str().is_some_and(|t| !t.is_empty() && t.len() <= longest && !t.chars().any(char::is_control))
        };
        match self {
            Self::Int(least, most) => value.as_u64().is_some_and(|n| (least..=most).contains(&n)),
            Self::IntOrNull(least, most) => value.is_null() || Self::Int(least, most).fits(value),
            Self::Bool => value.is_boolean(),
            Self::Share => value.as_f64().is_some_and(|p| p > 0.0 && p < 1.0),
            Self::Word(words) => value.as_str().is_some_and(|w| words.iter().any(|x| x.eq_ignore_ascii_case(w))),
            Self::Text(longest) => text(value, longest),
            Self::Words(most) => value.as_array().is_some_and(|a| a.len() <= most && a.iter().all(|w| text(w, 200))),
        }
    }

    fn says(self) -> String {
        match self {
            Self::Int(least, most) => format!("{least} to {most}"),
            Self::IntOrNull(least, most) => format!("{least} to {most}, or null"),
            Self::Bool => "true or false".into(),
            Self::Share => "between 0 and 1".into(),
            Self::Word(words) => words.join(" | "),
            Self::Text(longest) => format!("text of at most {longest} bytes"),
            Self::Words(most) => format!("at most {most} words"),
        }
    }
}
