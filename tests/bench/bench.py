#!/usr/bin/env python3
"""Squire beside the loop of three library calls, in one run on the same data. Figures, never assertions.

usage: bench.py SQUIRE-MAINTENANCE [--idle N] [--fragments N] [--rows N]      needs: pip install pylance numpy
Prints a Markdown table and the machine it was measured on; `make bench` passes the release binary.
"""
import argparse, os, platform, shutil, subprocess, sys, tempfile, time
from datetime import timedelta

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

ap = argparse.ArgumentParser()
ap.add_argument("binary"), ap.add_argument("--idle", type=int, default=300)
ap.add_argument("--fragments", type=int, default=200), ap.add_argument("--rows", type=int, default=2_500)
A = ap.parse_args()
rng = np.random.default_rng(7)


def loop(paths):
    for path in paths:
        ds = lance.dataset(path)
        ds.optimize.compact_files()
        ds.optimize.optimize_indices()
        ds.cleanup_old_versions(timedelta(days=7))


def squire(root):
    subprocess.run([A.binary, "sweep", root, "--yes", "-q"], check=True, stdout=subprocess.DEVNULL)


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def disk(root):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(root) for f in fs if "_squire" not in d)


def idle(root):
    paths = [os.path.join(root, f"t{i:03}") for i in range(A.idle)]
    for i, path in enumerate(paths):
        lance.write_dataset(pa.table({"id": range(i, i + 100)}), path)
    return paths


def messy(root):
    path = os.path.join(root, "t")
    for i in range(A.fragments):
        flat = pa.array(rng.random(A.rows * 256).astype("float32"))
        table = pa.table({"id": range(i * A.rows, (i + 1) * A.rows), "v": pa.FixedSizeListArray.from_arrays(flat, 256)})
        lance.write_dataset(table, path, mode="append" if i else "create")
    return [path]


print("| case | three calls | squire | ratio |\n|---|---|---|---|")
for name, make in ((f"{A.idle} idle datasets", idle), (f"{A.fragments} fragments of {A.rows} rows of 1 KiB", messy)):
    with tempfile.TemporaryDirectory() as a:
        paths = make(os.path.join(a, "x"))
        shutil.copytree(os.path.join(a, "x"), os.path.join(a, "y"))
        if make is idle:  # both have seen them once
            squire(os.path.join(a, "y")), loop(paths)
        theirs, ours = timed(lambda: loop(paths)), timed(lambda: squire(os.path.join(a, "y")))
        print(f"| {name} | {theirs:.2f} s | {ours:.2f} s | {theirs / ours:.1f} |")
print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, pylance {lance.__version__}")
