#!/usr/bin/env python3
"""Tables to build indices on, and what pylance makes of the indices afterwards.

usage: indices.py write DIR [ROWS [N]]     a table with a column for every kind of index, in four fragments or N
       indices.py check DIR NAME...        these indices against a scan of the same version; all rows covered
       indices.py append DIR ROWS START    rows with these ids
       indices.py compact DIR              compacts it, as any other program would
       indices.py pair DIR                 two columns, and two of documents, that are equal but for the row at 5
       indices.py odd DIR [stable]         two fragments of values that look-ups stumble over, with stable row ids or without
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


def pair(path):
    value = ["rare" if i in (0, 5, 6) else f"v{i}" for i in range(600)]
    other = ["else" if i == 5 else v for i, v in enumerate(value)]
    docs = lambda values: pa.array([json.dumps({"v": v}) for v in values], pa.json_())
    lance.write_dataset(pa.table({"value": value, "other": other, "doc": docs(value), "other_doc": docs(other)}), path)


def odd(path, stable=False):
    """NaN, both zeros, infinities, nothing, empty texts, stop words alone, empty lists, documents without the path."""
    nan, inf, n = float("nan"), float("inf"), 120
    floats = [nan, -nan, 0.0, -0.0, inf, -inf, None, 1.5, -1e300, 5e-324]
    texts = ["", None, "the", "of the and", "harbour", "Ünïcodé straße", "it's \"quoted\" \\ % _", " ", "x", "running runs ran", "日本語 テキスト", "a" * 70]
    over = lambda values, t: pa.array([values[i % len(values)] for i in range(n)], t)
    docs = ['{"kind": "a", "n": 1, "f": 0.1, "ok": true}', '{"kind": "", "n": -5, "f": 2, "ok": false}', "{}", None, '{"kind": null, "n": 7}', '{"kind": "it\'s"}']
    xs, ys = over(floats[:4] + [3.0, None], pa.float64()), over([nan, 1.0, 2.0, -0.0, 4.0, 5.0], pa.float64())
    point = pa.StructArray.from_arrays([xs, ys], names=["x", "y"], mask=pa.array([i % 7 == 0 for i in range(n)]))
    columns = {
        "id": pa.array(range(n), pa.int64()),
        "double": over(floats, pa.float64()),
        "single": over([nan, 0.0, -0.0, inf, None, 1.5, 3.25], pa.float32()),
        "half": pa.array(np.array([nan, 0.0, -0.0, np.inf, 2.5, 1.0] * (n // 6), np.float16), pa.float16()),
        "text": over(texts, pa.string()),
        "large": over(texts, pa.large_string()),
        "flag": over([True, False, None], pa.bool_()),
        "raw": over([b"", None, b"\0", b"\xff\xfe", b"abc"], pa.binary()),
        "fixed": over([b"abcd", None, b"\0\0\0\0"], pa.binary(4)),
        "price": pa.array([None if i % 9 == 0 else i / 4 - 7 for i in range(n)]).cast(pa.decimal128(12, 2)),
        "at": over([0, -1, None, 1_700_000_000_123_456], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "day": over([0, -719162, None, 20000], pa.int32()).cast(pa.date32()),
        "hour": over([0, None, 86_399_999_999], pa.int64()).cast(pa.time64("us")),
        "took": over([0, -5, None, 10**12], pa.int64()).cast(pa.duration("us")),
        "word": over(["a", "b", None, ""], pa.string()).dictionary_encode(),
        "tiny": over([0, 255, None], pa.uint8()),
        "huge": over([0, 2**64 - 1, None], pa.uint64()),
        "nothing": pa.nulls(n, pa.int32()),
        "labels": over([["a", None], [], None, [None], ["a", "b", "a"], [""]], pa.list_(pa.string())),
        "numbers": over([[1.5, nan], [], None, [0.0, -0.0]], pa.list_(pa.float64())),
        "texts": over([["the harbour", "of"], [], None, [None, "ledger"], [""]], pa.list_(pa.string())),
        "items": over([[{"note": "the harbour"}, {"note": None}], [], None, [None, {"note": "ledger"}]], pa.list_(pa.struct([("note", pa.string())]))),
        "doc": over(docs, pa.json_()),
        "outer": pa.StructArray.from_arrays([over([1, None, 3], pa.int64()), over(texts, pa.string())], names=["in.ner", "body"], mask=pa.array([i % 5 == 0 for i in range(n)])),
        "schön x": pa.array([i % 3 for i in range(n)], pa.int32()),
        "a,b": pa.array([i % 5 for i in range(n)], pa.int32()),
        "Case": pa.array(range(n), pa.int32()),
        "case": pa.array(range(n, 0, -1), pa.int32()),
        "point": point,
    }
    schema = pa.schema([pa.field(k, v.type, metadata={"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"} if k == "point" else None) for k, v in columns.items()])
    table = pa.Table.from_arrays(list(columns.values()), schema=schema)
    for part in (table.slice(0, n - 7), table.slice(n - 7)):
        lance.write_dataset(part, path, mode="append" if os.path.exists(path) else "create", enable_stable_row_ids=bool(stable))


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
    elif verb == "pair":
        pair(path)
    elif verb == "odd":
        odd(path, *rest)
    elif verb == "compact":
        lance.dataset(path).optimize.compact_files()
    elif verb == "check":
        check(path, rest)
    sys.exit(1 if problems else 0)
