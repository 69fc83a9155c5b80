#!/usr/bin/env python3
"""Reads a lake with pylance, not with Squire's own reader, and says whether the stated facts hold.

usage: check.py ROOT FACTS.jsonl [--shape]   every stated fact; with --shape also fragments, unindexed rows and segments
       check.py --indices DATASET...         every index against a scan
       check.py --versions DATASET V...      these versions read, and how many rows each has (JSON)
FACTS.jsonl holds one object per dataset: path, rows, id_sum, tags, and optionally branch, fragments_after.
Prints one line per problem; exit 1 if there is any.
"""
import json, os, sys

os.environ.setdefault("LANCE_LOG", "error")
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")
import lance, numpy as np, pyarrow as pa

problems = []


def problem(text):
    problems.append(text)
    print(text)


def ids(ds):
    return ds.to_table(columns=["id"])["id"].to_pylist() if "id" in ds.schema.names else []


def indices(path):
    """Every index of a dataset against a scan of the same version."""
    ds = lance.dataset(path)
    for index in ds.describe_indices():
        column, kind = index.field_names[0], index.index_type.upper()
        if kind in ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"):
            values = ds.to_table(columns=[column])[column].to_pylist()
            for v in sorted(set(values), key=str)[:: max(1, len(set(values)) // 40)]:
                text = f"{column} = {v!r}"
                plain = sorted(ds.scanner(columns=["id"], filter=text, use_scalar_index=False).to_table()["id"].to_pylist())
                fast = sorted(ds.scanner(columns=["id"], filter=text).to_table()["id"].to_pylist())
                if plain != fast:
                    problem(f"{path}: {index.name}: {text} finds {len(fast)} by index and {len(plain)} by scan")
        elif kind in ("INVERTED", "FTS"):
            table = ds.to_table(columns=["id", column])
            for word in ("harbour", "ledger", "copper", "winter"):
                plain = sorted(i for i, t in zip(table["id"].to_pylist(), table[column].to_pylist()) if word in t.split())
                fast = sorted(ds.scanner(columns=["id"], full_text_query={"query": word, "columns": [column]}, limit=10**6).to_table()["id"].to_pylist())
                if plain != fast:
                    problem(f"{path}: {index.name}: {word} finds {len(fast)} by index and {len(plain)} by scan")
        elif kind in ("LABELLIST", "LABEL_LIST"):
            table = ds.to_table(columns=["id", column])
            for label in sorted({label for labels in table[column].to_pylist() for label in labels or []})[:20]:
                plain = sorted(i for i, labels in zip(table["id"].to_pylist(), table[column].to_pylist()) if label in (labels or []))
                text = f"array_has_any({column}, ['{label}'])"
                fast = sorted(ds.scanner(columns=["id"], filter=text).to_table()["id"].to_pylist())
                if plain != fast:
                    problem(f"{path}: {index.name}: {text} finds {len(fast)} by index and {len(plain)} by scan")
        elif kind.startswith("IVF") or kind == "VECTOR":
            dim = ds.schema.field(column).type.list_size
            rng, hits = np.random.default_rng(3), 0
            for _ in range(10):
                q = rng.random(dim).astype("float32")
                near = {"column": column, "q": q, "k": 10}
                exact = ds.to_table(columns=["id"], nearest={**near, "use_index": False})["id"].to_pylist()
                fast = ds.to_table(columns=["id"], nearest={**near, "nprobes": 64, "refine_factor": 20})["id"].to_pylist()
                hits += len(set(exact) & set(fast))
            if hits < 80:
                problem(f"{path}: {index.name}: recall@10 is {hits / 100}")
        else:
            problem(f"{path}: {index.name}: no check for index type {kind}")


def shape(path, fact):
    ds = lance.dataset(path)
    if len(ds.get_fragments()) != fact["fragments_after"]:
        problem(f"{path}: {len(ds.get_fragments())} fragments instead of {fact['fragments_after']}")
    for index in ds.describe_indices():
        stats = ds.stats.index_stats(index.name)
        if stats["num_unindexed_rows"]:
            problem(f"{path}: {index.name} has {stats['num_unindexed_rows']} unindexed rows")
        if stats.get("num_indices", stats.get("num_segments", 1)) > 2:
            problem(f"{path}: {index.name} has more than two segments")


def facts(root, file, with_shape):
    for line in open(file):
        fact = json.loads(line)
        path = os.path.join(root, fact["path"])
        try:
            ds = lance.dataset(path)
            ds.validate()
            found = ids(ds)
            if len(found) != fact["rows"] or sum(found) != fact["id_sum"]:
                problem(f"{path}: {len(found)} rows (sum {sum(found)}) instead of {fact['rows']} (sum {fact['id_sum']})")
            ds.to_table()
            for version in fact.get("tags", []):
                lance.dataset(path, version=version).to_table()
            if fact.get("branch"):
                ds.checkout_version((fact["branch"], None)).to_table()
            indices(path)
            if with_shape:
                shape(path, fact)
        except Exception as e:  # a dataset that does not read is what this is looking for
            problem(f"{path}: {type(e).__name__}: {e}")


if sys.argv[1] == "--indices":
    for p in sys.argv[2:]:
        indices(p)
elif sys.argv[1] == "--versions":
    out = {}
    for v in sys.argv[3:]:
        try:
            out[v] = lance.dataset(sys.argv[2], version=int(v)).to_table().num_rows
        except Exception as e:
            out[v] = f"{type(e).__name__}"
    print(json.dumps(out))
else:
    facts(sys.argv[1], sys.argv[2], "--shape" in sys.argv)
sys.exit(1 if problems else 0)
