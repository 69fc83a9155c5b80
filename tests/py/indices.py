#!/usr/bin/env python3
"""Tables to build indices on, and what pylance makes of the indices afterwards.

usage: indices.py write DIR [ROWS [N]]     a table with a column for every kind of index, in four fragments or N
       indices.py check DIR NAME...        these indices against a scan of the same version; all rows covered
       indices.py append DIR ROWS START    rows with these ids
       indices.py compact DIR              compacts it, as any other program would
Prints one line per problem; exit 1 if there is any.
"""
import json, os, sys

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

WORDS = ["harbour", "ledger", "copper", "vessel", "signal", "archive", "meadow", "lantern", "orbit", "granite", "paper", "winter"]
DIM = 16


def rows(n, start):
    ids = np.arange(start, start + n)
    rng = np.random.default_rng(start + 1)
    vectors = rng.random((n, DIM), dtype=np.float32)
    fsl = lambda a, t: pa.FixedSizeListArray.from_arrays(pa.array(a.ravel(), t), DIM)
    bits = rng.integers(0, 256, (n, DIM), dtype=np.uint8)
    docs = [json.dumps({"a": {"b": int(i % 50)}, "kind": WORDS[i % 4]}) for i in ids]
    point = pa.StructArray.from_arrays([pa.array(ids % 100, pa.float64()), pa.array(ids // 100, pa.float64())], names=["x", "y"])
    columns = {
        "id": pa.array(ids, pa.int64()),
        "kind": pa.array([None if i % 97 == 0 else WORDS[i % 4] for i in ids]),
        "labels": pa.array([[WORDS[i % 5], WORDS[(i // 5) % 7]] if i % 11 else [] for i in ids], pa.list_(pa.string())),
        "price": pa.array(ids * 0.5, pa.float64()),
        "body": pa.array([" ".join(WORDS[(i * k + k) % 12] for k in (1, 3, 7)) for i in ids.tolist()]),
        "doc": pa.array(docs, pa.json_()),
        "nested": pa.StructArray.from_arrays([pa.array(ids * 3, pa.int64()), pa.array([WORDS[i % 6] for i in ids])], names=["a", "b"]),
        "vector": fsl(vectors, pa.float32()),
        "half": fsl(vectors.astype(np.float16), pa.float16()),
        "bits": fsl(bits, pa.uint8()),
        "dash-ed": pa.array(ids % 10, pa.int32()),
        "raw": pa.array([bytes([i % 256]) for i in ids], pa.binary()),
        "point": point,
    }
    fields = []
    for name, array in columns.items():
        metadata = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"} if name == "point" else None
        fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def write(path, n=2000, fragments=4):
    part = n // fragments
    for k in range(fragments):
        lance.write_dataset(rows(part, k * part), path, mode="create" if k == 0 else "append")


problems = []


def problem(text):
    problems.append(text)
    print(text)


def ids_of(scanner):
    return sorted(scanner.to_table()["id"].to_pylist())


def exact(ds, name, filters):
    for text in filters:
        plain = ids_of(ds.scanner(columns=["id"], filter=text, use_scalar_index=False))
        fast = ids_of(ds.scanner(columns=["id"], filter=text))
        if plain != fast:
            problem(f"{name}: {text} finds {len(fast)} by index and {len(plain)} by scan")
        if not plain:
            problem(f"{name}: {text} asks for nothing")
        shown = ds.scanner(columns=["id"], filter=text).explain_plan(True)
        if "ScalarIndexQuery" not in shown and "MaterializeIndex" not in shown and name not in shown:
            problem(f"{name}: {text} does not use the index: {shown}")


def text(ds, name, column):
    table = ds.to_table(columns=["id", column])
    for word in WORDS[:4] + ["winter", "nowhere"]:
        plain = sorted(i for i, t in zip(table["id"].to_pylist(), table[column].to_pylist()) if word in t.split())
        fast = ids_of(ds.scanner(columns=["id"], full_text_query={"query": word, "columns": [column]}, limit=10**6))
        if plain != fast:
            problem(f"{name}: {word} finds {len(fast)} by index and {len(plain)} by scan")


def vectors(ds, name, column):
    rng, hits = np.random.default_rng(7), 0
    binary = ds.schema.field(column).type.value_type == pa.uint8()
    for _ in range(20):
        q = rng.integers(0, 256, DIM, dtype=np.uint8) if binary else rng.random(DIM, dtype=np.float32)
        ask = {"column": column, "q": q, "k": 10}
        if column == "half":
            ask["metric"] = "cosine"
        plain = ds.to_table(columns=["id"], nearest={**ask, "use_index": False})["id"].to_pylist()
        fast = ds.to_table(columns=["id"], nearest={**ask, "nprobes": 4096, "refine_factor": 20, "ef": 400})["id"].to_pylist()
        hits += len(set(plain) & set(fast))
    if hits < 180:
        problem(f"{name}: recall@10 is {hits / 200}")


FILTERS = {
    "id": ["id = 7", "id > 1900", "id IN (3, 5, 700)"],
    "price": ["price < 20.0", "price = 50.0"],
    "kind": ["kind = 'ledger'", "kind IS NULL"],
    "labels": ["array_has_any(labels, ['copper'])", "array_has_all(labels, ['copper', 'ledger'])"],
    "nested.a": ["nested.a = 300"],
    "dash-ed": ["`dash-ed` = 3"],
}


def check(path, names):
    ds = lance.dataset(path)
    described = {i.name: i for i in ds.describe_indices()}
    for name in names:
        index = described.get(name)
        if index is None:
            problem(f"{name}: there is no such index, only {sorted(described)}")
            continue
        stats = ds.stats.index_stats(name)
        if stats["num_unindexed_rows"] != 0 or stats["num_indexed_rows"] != ds.count_rows():
            problem(f"{name}: covers {stats['num_indexed_rows']} of {ds.count_rows()} rows")
        column, kind = index.field_names[0], index.index_type.upper().replace("_", "")
        if kind in ("INVERTED", "FTS"):
            text(ds, name, column)
        elif kind.startswith("IVF") or kind == "VECTOR":
            vectors(ds, name, column)
        elif kind == "NGRAM":
            exact(ds, name, ["contains(body, 'arbou')", "contains(body, 'ledger')"])
        elif kind == "JSON":
            exact(ds, name, ["json_get_string(doc, 'kind') = 'ledger'"])
        elif kind == "RTREE":
            exact(ds, name, ["st_intersects(point, st_geomfromtext('POLYGON((0 0, 5 0, 5 5, 0 5, 0 0))'))"])
        elif column in FILTERS:
            exact(ds, name, FILTERS[column])
        else:
            problem(f"{name}: nobody knows what to ask {column} ({kind})")


if __name__ == "__main__":
    verb, path, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if verb == "write":
        write(path, *map(int, rest))
    elif verb == "append":
        lance.write_dataset(rows(int(rest[0]), int(rest[1])), path, mode="append")
    elif verb == "compact":
        lance.dataset(path).optimize.compact_files()
    elif verb == "check":
        check(path, rest)
    sys.exit(1 if problems else 0)
