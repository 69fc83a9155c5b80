#!/usr/bin/env python3
"""Datasets in every layout that the library's own Python writer can make: input for the file classes and the oracle.

usage: layouts.py DIR      needs: pip install pylance==14.0.2 pyarrow
Writes DIR/absolute; DIR/relative with the same datasets named by relative paths: there branches and clones name their bases so,
and only who stands in that folder can read them; and DIR/elsewhere: managed blobs and a MemWAL, named by no manifest of the table.
Prints one JSON line per dataset: {"name", "files": {kind: at least so many}}. Nothing is left over in any of them.
"""
import json, os, sys, uuid

os.environ.setdefault("LANCE_LOG", "error")
import lance, pyarrow as pa

DIR = os.path.abspath(sys.argv[1])
WHERE = ""


def at(name):
    """The dataset's path as it is typed."""
    return name if WHERE == "relative" else os.path.join(DIR, WHERE, name)


def rows(n, start=0):
    return pa.table({"id": pa.array(range(start, start + n), pa.int64()), "kind": pa.array([f"k{i % 5}" for i in range(n)])})


def write(name, n=3, rows_each=20, **kw):
    for i in range(n):
        lance.write_dataset(rows(rows_each, i * rows_each), at(name), mode="append" if i else "create", **kw)
    return lance.dataset(at(name))


def done(name, **files):
    print(json.dumps({"name": f"{WHERE}/{name}", "files": files}))


def branches():
    ds = write("branches")
    dev = ds.create_branch("dev", 2)
    lance.write_dataset(rows(10, 900), dev, mode="append")
    dev = ds.checkout_version(("dev", None))
    dev.delete("id = 900")
    dev.create_scalar_index("id", "BTREE")
    deep = dev.create_branch("feature/deep", ("dev", dev.version))
    lance.write_dataset(rows(10, 950), deep, mode="append")
    ds.tags.create("on-dev", ("dev", 3))
    ds.tags.create("main-1", 1)
    ds.delete("id < 5")
    done("branches", tree=10, refs=4)


def detached():
    ds = write("detached")
    fragments = lance.fragment.write_fragments(rows(7, 700), ds)
    lance.LanceDataset.commit(ds, lance.LanceOperation.Append(fragments), read_version=ds.version, detached=True)
    done("detached", detached=1)


def v1_names():
    write("v1_names", 4, enable_v2_manifest_paths=False).delete("id = 3")
    done("v1_names")


def stable_row_ids():
    ds = write("stable_row_ids", 4, enable_stable_row_ids=True)
    ds.create_scalar_index("id", "BTREE")
    ds.update({"kind": "'x'"}, where="id < 9")
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(30, 50))
    done("stable_row_ids")


def rebuilt_indices():
    ds = write("rebuilt_indices", 3, 100)
    for _ in range(3):
        ds.create_scalar_index("id", "BTREE", replace=True)
        ds.create_scalar_index("kind", "BITMAP", replace=True)
    ds.create_scalar_index("kind", "INVERTED", name="words")
    lance.write_dataset(rows(50, 5_000), at("rebuilt_indices"), mode="append")
    lance.dataset(at("rebuilt_indices")).optimize.optimize_indices()
    done("rebuilt_indices", index=8)


def reuse():
    ds = write("reuse", 4, 50)
    ds.create_scalar_index("id", "BTREE")
    ds.optimize.compact_files(target_rows_per_fragment=1_000, defer_index_remap=True)
    done("reuse")


def legacy():
    write("legacy", 3, data_storage_version="legacy")
    done("legacy")


def blobs_v1():
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("page", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    for i in range(2):
        t = pa.table({"id": [i], "page": pa.array([bytes(20_000)], pa.large_binary())}, schema=schema)
        lance.write_dataset(t, at("blobs_v1"), mode="append" if i else "create", data_storage_version="2.1")
    done("blobs_v1")


def blobs_v2():
    for i in range(3):
        pages = [b"small", bytes([i]) * 200_000, bytes([i]) * 6_000_000]
        t = pa.table({"id": pa.array(range(i * 3, i * 3 + 3), pa.int64()), "page": lance.blob_array(pages)},
                     schema=pa.schema([pa.field("id", pa.int64()), lance.blob_field("page")]))
        lance.write_dataset(t, at("blobs_v2"), mode="append" if i else "create", data_storage_version="2.2")
    lance.dataset(at("blobs_v2")).delete("id = 1")
    done("blobs_v2", sidecar=6)


def bases():
    os.makedirs("other_base", exist_ok=True)
    here = lance.DatasetBasePath(os.path.abspath("bases/inside"), name="inside", is_dataset_root=False)
    away = lance.DatasetBasePath(os.path.abspath("other_base"), name="away", is_dataset_root=True)
    lance.write_dataset(rows(10), at("bases"), mode="create", initial_bases=[here, away], target_bases=["inside"])
    lance.write_dataset(rows(10, 10), at("bases"), mode="append", target_bases=["away"])
    lance.write_dataset(rows(10, 20), at("bases"), mode="append")
    done("bases", inside=1)


def clones():
    ds = write("source", 3)
    ds.create_scalar_index("id", "BTREE")
    ds = lance.dataset(at("source"))
    ds.shallow_clone(at("clone_of_source"), ds.version)
    lance.write_dataset(rows(5, 800), at("clone_of_source"), mode="append")
    ds.shallow_clone(os.path.abspath("clone_by_path"), ds.version)
    lance.write_dataset(rows(5, 9_000), at("source"), mode="overwrite")
    done("source"), done("clone_of_source"), done("clone_by_path")


def managed():
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("page")], metadata={"lance.blob.managed": "true"})
    for i in range(2):
        pages = lance.blob_array([b"small", bytes([i]) * 200_000, bytes([i]) * 6_000_000])
        t = pa.table({"id": pa.array(range(i * 3, i * 3 + 3), pa.int64()), "page": pages}, schema=schema)
        lance.write_dataset(t, at("managed"), mode="append" if i else "create", data_storage_version="2.2")
    done("managed", managed=4)


def mem_wal():
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), pa.field("kind", pa.string())])
    t = pa.table({"id": [1, 2, 3], "kind": ["a", "b", "c"]}, schema=schema)
    ds = lance.write_dataset(t, at("mem_wal"))
    ds.initialize_mem_wal(unsharded=True)
    with lance.dataset(at("mem_wal")).mem_wal_writer(str(uuid.UUID(int=7))) as writer:
        writer.put(t)
    done("mem_wal", mem_wal=3)


for WHERE in ("absolute", "relative"):
    os.makedirs(os.path.join(DIR, WHERE))
    os.chdir(os.path.join(DIR, WHERE))
    for make in (branches, detached, v1_names, stable_row_ids, rebuilt_indices, reuse, legacy, blobs_v1, blobs_v2, bases, clones):
        make()

# Layouts whose files are named in places that no manifest of the table shows.
WHERE = "elsewhere"
os.makedirs(os.path.join(DIR, WHERE))
os.chdir(os.path.join(DIR, WHERE))
managed(), mem_wal()
