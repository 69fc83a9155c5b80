#!/usr/bin/env python3
"""Other people's writers, for tests.

usage: writers.py backfill URI STOP    adds a column slowly: prints `started` when its first file lies there, waits until the
                                       file STOP exists, ends, and prints `done <rows with a value> of <rows>` or the error
       writers.py busy URI SECONDS     appends, updates and deletes five times a second; prints `done <writes>` or the error
needs: pip install pylance
"""
import glob, os, sys, threading, time

os.environ.setdefault("LANCE_LOG", "error")
import lance, pyarrow as pa

VERB, URI, REST = sys.argv[1], sys.argv[2], sys.argv[3]


def data_files():
    return set(glob.glob(f"{URI}/data/*.lance"))


def backfill():
    ds = lance.dataset(URI)
    before, seen = data_files(), 0

    @lance.batch_udf(output_schema=pa.schema([pa.field("filled", pa.int64())]))
    def slow(batch):
        nonlocal seen
        seen += 1
        if seen > 2:  # the first fragments' files are written, the others wait
            end = time.monotonic() + 240
            while not os.path.exists(REST) and time.monotonic() < end:
                time.sleep(0.05)
        return pa.record_batch([pa.array([1] * batch.num_rows, pa.int64())], ["filled"])

    def tell():
        end = time.monotonic() + 60
        while not data_files() - before and time.monotonic() < end:
            time.sleep(0.05)
        print("started", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    ds.add_columns(slow, read_columns=["id"])
    rows = lance.dataset(URI).to_table(columns=["filled"])["filled"]
    print(f"done {len(rows) - rows.null_count} of {len(rows)}", flush=True)


def busy():
    end, writes, next_id = time.monotonic() + float(REST), 0, 1_000_000
    print("started", flush=True)
    while time.monotonic() < end:
        began = time.monotonic()
        ds = lance.dataset(URI)
        if writes % 3 == 0:
            columns = {f.name: pa.nulls(10, f.type) for f in ds.schema} | {"id": pa.array(range(next_id, next_id + 10), pa.int64())}
            lance.write_dataset(pa.table(columns, schema=ds.schema), URI, mode="append")
            next_id += 10
        elif writes % 3 == 1:
            ds.update({"id": "id + 0"}, where=f"id >= {next_id - 5}")
        else:
            ds.delete(f"id = {next_id - 1}")
        writes += 1
        time.sleep(max(0, 0.2 - (time.monotonic() - began)))
    print(f"done {writes}", flush=True)


{"backfill": backfill, "busy": busy}[VERB]()
