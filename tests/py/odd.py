#!/usr/bin/env python3
"""Writes odd datasets with pylance, and says what they read as.

usage: odd.py make ROOT KIND...   writes each dataset KIND at ROOT/KIND
       odd.py state ROOT KIND...  one JSON object, by KIND: rows, a digest of the multiset of rows, and per index its segments and
                                  unindexed rows; a JSON index is also compared with a scan
       odd.py many DIR N          one fragment of 1,000 rows and N - 1 appends of one row
"""
import collections, hashlib, json, os, sys

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

WORDS = "harbour ledger copper vessel signal archive meadow lantern orbit granite paper winter".split()
DIM = 8


def rows(n, start=0, vector=False):
    rng = np.random.default_rng(start + 1)
    ids = list(range(start, start + n))
    cols = {"id": pa.array(ids, pa.int64()), "kind": pa.array([WORDS[i % 4] for i in ids], pa.string()),
            "body": pa.array([" ".join(WORDS[(i * 7 + w * 5) % 12] for w in range(5)) for i in ids], pa.string())}
    if vector:
        cols["vec"] = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(n * DIM).astype("float32")), DIM)
    return pa.table(cols)


def append(path, n, start, **kw):
    create = not os.path.exists(path)
    return lance.write_dataset(rows(n, start, kw.pop("vector", False)), path, mode="create" if create else "append", **kw)


def several(path, n=6, size=20, **kw):
    for i in range(n):
        ds = append(path, size, i * size, **kw)
    return ds


def v1_names(path):
    ds = several(path, enable_v2_manifest_paths=False)
    ds.create_scalar_index("id", "BTREE")
    append(path, 20, 900)


def untrained_vector(path):
    append(path, 20, 0, vector=True).create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=4)
    several_more(path, vector=True)


def trainable_vector(path):
    """An index declared on an empty table, which has rows enough by now."""
    append(path, 0, 0, vector=True)
    lance.dataset(path).create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=4)
    for i in range(5):
        append(path, 80, i * 80, vector=True)


def text_on_empty(path):
    append(path, 0, 0)
    lance.dataset(path).create_scalar_index("body", "INVERTED")
    several_more(path)


def several_more(path, **kw):
    for i in range(5):
        append(path, 10, 1_000 + i * 10, **kw)


def segment_per_fragment(path, column, kind, vector=False, **kw):
    """Each append gets a segment of its own: what the default optimise leaves."""
    ds = append(path, 300, 0, vector=vector)
    if kind.startswith("IVF"):
        ds.create_index(column, kind, **kw)
    else:
        ds.create_scalar_index(column, kind)
    for i in range(5):
        ds = append(path, 300, 1_000 + i * 300, vector=vector)
        ds.optimize.optimize_indices(num_indices_to_merge=0)


def segments_btree(path):
    segment_per_fragment(path, "id", "BTREE")


def segments_text(path):
    segment_per_fragment(path, "body", "INVERTED")


def segments_vector(path):
    segment_per_fragment(path, "vec", "IVF_PQ", vector=True, num_partitions=2, num_sub_vectors=4)


def json_index(path):
    def docs(start):
        ids = list(range(start, start + 20))
        return pa.table({"id": pa.array(ids, pa.int64()),
                         "doc": pa.array([json.dumps({"k": i % 5, "name": WORDS[i % 12]}) for i in ids], pa.json_())})
    from lance.indices import IndexConfig
    ds = lance.write_dataset(docs(0), path, data_storage_version="2.2")
    ds.create_scalar_index("doc", IndexConfig(index_type="json", parameters={"target_index_type": "btree", "path": "k"}))
    for i in range(1, 5):
        lance.write_dataset(docs(i * 20), path, mode="append")


def extra_bases(path):
    from lance import DatasetBasePath
    other = path + "-base"
    os.makedirs(other, exist_ok=True)
    lance.write_dataset(rows(20), path, mode="create", initial_bases=[DatasetBasePath(other, name="b")], target_bases=["b"])
    for i in range(1, 5):
        lance.write_dataset(rows(20, i * 20), path, mode="append", target_bases=["b"])


def skipping_indices(path):
    ds = several(path)
    ds.create_scalar_index("id", "ZONEMAP")
    ds.create_scalar_index("kind", "BLOOMFILTER")
    several_more(path)


def every_row_deleted(path):
    ds = several(path)
    ds.create_scalar_index("id", "BTREE")
    ds.create_scalar_index("body", "INVERTED")
    lance.dataset(path).delete("true")


def zero_rows(path):
    ds = append(path, 0, 0)
    ds.create_scalar_index("id", "BTREE")


def one_row(path):
    append(path, 1, 7).create_scalar_index("id", "BTREE")


def dead_in_indices(path):
    """Lance's own compaction leaves the deleted rows among the best of both indices."""
    ds = several(path, n=2, size=300, vector=True, enable_stable_row_ids=True)
    ds.create_scalar_index("body", "INVERTED")
    ds.create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=4)
    lance.dataset(path).delete("id % 3 = 0")
    lance.dataset(path).optimize.compact_files()


KINDS = [v1_names, untrained_vector, trainable_vector, text_on_empty, segments_btree, segments_text, segments_vector, json_index,
         extra_bases, skipping_indices, every_row_deleted, zero_rows, one_row, dead_in_indices]


def many(path, n):
    ds = lance.write_dataset(rows(1_000), path)
    for i in range(int(n) - 1):
        ds = lance.write_dataset(rows(1, 1_000 + i), ds, mode="append")


def json_lookups(ds):
    for k in range(5):
        where = f"json_get_int(doc, 'k') = {k}"
        plain = sorted(ds.scanner(columns=["id"], filter=where, use_scalar_index=False).to_table()["id"].to_pylist())
        fast = sorted(ds.scanner(columns=["id"], filter=where).to_table()["id"].to_pylist())
        assert len(plain) == 20 and plain == fast, (k, plain, fast)


def state(path):
    ds = lance.dataset(path)
    table = ds.to_table()
    counted = collections.Counter(repr(r) for r in table.to_pylist())
    text = "\n".join(f"{n} {r}" for r, n in sorted(counted.items()))
    if "doc" in ds.schema.names:
        json_lookups(ds)
    indices = {}
    for index in ds.describe_indices():
        stats = ds.stats.index_stats(index.name)
        indices[index.name] = [stats.get("num_segments", stats.get("num_indices")), stats["num_unindexed_rows"]]
    return {"rows": table.num_rows, "digest": hashlib.sha256(text.encode()).hexdigest(), "indices": indices}


verb, root, args = sys.argv[1], sys.argv[2], sys.argv[3:]
if verb == "many":
    many(root, args[0])
elif verb == "make":
    for kind in (k for k in KINDS if k.__name__ in args):
        kind(os.path.join(root, kind.__name__))
else:
    print(json.dumps({kind: state(os.path.join(root, kind)) for kind in args}))
