#!/usr/bin/env python3
"""Tables as one release of LanceDB leaves them, and what that release can still do with them.

Runs on the LanceDB of the interpreter that runs it, 0.14 to the newest; see docs/compatibility.md.

usage: old_clients.py write DIR           seven tables in DIR, deterministic but for times and uuids: plain (no index),
                                          scalar (BTREE, BITMAP), stable (BTREE over stable row ids, where the release has
                                          them), tags (LABEL_LIST), fts (full text), vector (IVF_PQ), graph (IVF_HNSW_SQ);
                                          an index is made on the first two fragments, and four more follow
       old_clients.py search DIR [TABLE]  scan, filters, full text and vector search on every table, as one JSON object:
                                          {table: {kind: answer}}; an answer that fails is {"error": first line}
       old_clients.py add DIR             appends ten rows to every table: {table: rows or {"error": …}}
       old_clients.py commits DIR TABLE N appends one row to a table, N times
       old_clients.py rebuild DIR         makes the full-text index of the table fts anew
       old_clients.py version             the versions of what answers, JSON
"""
import json, os, random, re, shutil, sys, warnings

warnings.simplefilter("ignore")
os.environ["LANCE_LOG"] = os.environ["LANCEDB_LOG"] = "off"
import lancedb, pyarrow as pa

WORDS = "harbour ledger copper vessel signal archive meadow lantern orbit granite winter".split()
DIM, FIRST, APPENDS, EACH = 8, 260, 4, 20
FIELDS = {"id": pa.int64(), "kind": pa.string(), "text": pa.string(), "tags": pa.list_(pa.string()), "vector": pa.list_(pa.float32(), DIM)}
OWN = {"plain": "text", "scalar": "kind", "stable": "kind", "tags": "tags", "fts": "text", "vector": "vector", "graph": "vector"}
STABLE = {"new_table_enable_stable_row_ids": "true"}


def rows(table, start, n):
    names = dict.fromkeys(("id", "kind", OWN[table]))
    out = []
    for i in range(start, start + n):
        rng = random.Random(i)
        row = {"id": i, "kind": "abc"[i % 3], "text": " ".join(rng.choices(WORDS, k=4)), "tags": rng.sample(WORDS, 2),
               "vector": [round(rng.random(), 3) for _ in range(DIM)]}
        out.append({name: row[name] for name in names})
    return pa.Table.from_pylist(out, schema=pa.schema([(name, FIELDS[name]) for name in names]))


def full_text(table):
    try:
        table.create_fts_index("text", use_tantivy=False)
    except TypeError:  # releases without the choice
        table.create_fts_index("text")


def index(table, kind):
    if kind in ("scalar", "stable"):
        table.create_scalar_index("id")
    if kind == "scalar":
        table.create_scalar_index("kind", index_type="BITMAP")
    elif kind == "tags":
        table.create_scalar_index("tags", index_type="LABEL_LIST")
    elif kind == "fts":
        full_text(table)
    elif kind == "vector":
        table.create_index(metric="l2", vector_column_name="vector", num_partitions=2, num_sub_vectors=4)
    elif kind == "graph":
        table.create_index(metric="l2", vector_column_name="vector", index_type="IVF_HNSW_SQ", num_partitions=1)


def create(db, kind):
    if kind == "stable":
        try:
            return db.create_table(kind, data=rows(kind, 0, FIRST // 2), storage_options=STABLE)
        except TypeError:  # releases without such options
            pass
    return db.create_table(kind, data=rows(kind, 0, FIRST // 2))


def write(where):
    shutil.rmtree(where, ignore_errors=True)
    db = lancedb.connect(where)
    for kind in OWN:
        table = create(db, kind)
        table.add(rows(kind, FIRST // 2, FIRST // 2))
        index(table, kind)
        for k in range(APPENDS):
            table.add(rows(kind, FIRST + k * EACH, EACH))


FILTERS = ("id = 7", "id = 333", "kind = 'b'", "array_has_any(tags, ['copper'])")


def told(answer):
    """The answer, or what was said instead. A panic of the library arrives as a BaseException."""
    try:
        return answer()
    except BaseException as e:
        text = (str(e).strip().splitlines() or [""])[0]
        return {"error": f"{type(e).__name__}: {re.sub(r'/[^ ,:]*/', '', text)[:200]}"}


def ids(query):
    return query.to_arrow()["id"].to_pylist()


def searches(table):
    out = {}
    out["scan"] = told(lambda: [table.count_rows(), sum(table.to_arrow()["id"].to_pylist())])
    for f in FILTERS[:3] + FILTERS[3:] * (table.name == "tags"):
        out[f] = told(lambda: sorted(ids(table.search().where(f).limit(5000))))
    if table.name == "fts":
        out["full_text"] = told(lambda: {w: sorted(ids(table.search(w, query_type="fts").limit(5000))) for w in WORDS[:4]})
    if table.name in ("vector", "graph"):
        queries = [[random.Random(-1 - k).random() for _ in range(DIM)] for k in range(5)]
        # With so many candidates refined, an index that works answers as a scan does.
        out["vector"] = told(lambda: [ids(table.search(q).nprobes(2).refine_factor(50).limit(10)) for q in queries])
        out["uses_index"] = told(lambda: "ANN" in table.search(queries[0]).limit(10).explain_plan(True))
    if table.name in ("scalar", "stable"):
        out["uses_index"] = told(lambda: bool(re.search("ScalarIndex|MaterializeIndex", table.search().where("id = 7").explain_plan(True))))
    return out


def each(where, what, only=()):
    db = lancedb.connect(where)
    names = [k for k in OWN if not only or k in only]
    print(json.dumps({n: told(lambda: what(db.open_table(n))) for n in names}, sort_keys=True))


def add(table):
    table.add(rows(table.name, 1000, 10))
    return table.count_rows()


def rebuild(where):
    """Makes every full-text index anew, as an operator does for an index of an older layout."""
    lancedb.connect(where).open_table("fts").create_fts_index("text", replace=True)


def versions():
    import importlib.metadata as m
    return {p: m.version(p) for p in ("lancedb", "pyarrow")}


verb, args = sys.argv[1], sys.argv[2:]
if verb == "write":
    write(args[0])
elif verb == "search":
    each(args[0], searches, args[1:])
elif verb == "add":
    each(args[0], add)
elif verb == "commits":
    table = lancedb.connect(args[0]).open_table(args[1])
    for k in range(int(args[2])):
        table.add(rows(table.name, 2000 + k, 1))
elif verb == "rebuild":
    rebuild(args[0])
elif verb == "version":
    print(json.dumps(versions()))
else:
    sys.exit(__doc__)
# Some old releases crash while the interpreter winds down, after all is done.
sys.stdout.flush()
os._exit(0)
