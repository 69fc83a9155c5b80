#!/usr/bin/env python3
"""Index builds beside pylance's create_index, and two replicas beside one, in one run on the same data. Figures, never assertions.

usage: index_build.py SQUIRE-INDEX-BUILD SQUIRE-REGISTRY [--rows N] [--dim N]
needs: pip install pylance numpy; for replicas also nats-server beside the Python, and taskset
Prints a Markdown table and the machine it was measured on; `make bench` passes the release binaries. Replicas have one processor each
and share a local disk: what a storage with latency gives beyond that is not measured here.
"""
import argparse, json, os, platform, signal, subprocess, sys, tempfile, time

os.environ.setdefault("LANCE_LOG", "error")
import lance, numpy as np, pyarrow as pa

ap = argparse.ArgumentParser()
ap.add_argument("binary"), ap.add_argument("registry")
ap.add_argument("--rows", type=int, default=1_000_000), ap.add_argument("--dim", type=int, default=64)
ap.add_argument("--fragments", type=int, default=16)
A = ap.parse_args()
CASES = [("id", "BTREE", {}), ("v", "IVF_PQ", {"num_partitions": 128, "num_sub_vectors": 8})]


def write(uri, options=None):
    rng, part = np.random.default_rng(7), A.rows // A.fragments
    for i in range(A.fragments):
        flat = pa.array(rng.random(part * A.dim, dtype=np.float32))
        ids = rng.permutation(np.arange(i * part, (i + 1) * part))
        table = pa.table({"id": ids, "v": pa.FixedSizeListArray.from_arrays(flat, A.dim)})
        lance.write_dataset(table, uri, mode="append" if i else "create", storage_options=options)


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def quiet(args, **more):
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL, **more)


def register(folder, root):
    quiet([A.registry, "init", f"{root}/_squire"])
    for args in ("project create p", f"warehouse create w --project p --root {root}", "namespace create namespace/a --warehouse w",
                 "table create table/a/t --location t.lance"):
        quiet([A.registry, "--registry", f"{root}/_squire", *args.split()])


def theirs(path, column, kind, params):
    ds = lance.dataset(path)
    if kind == "BTREE":
        ds.create_scalar_index(column, "BTREE", replace=True)
    else:
        ds.create_index(column, kind, replace=True, **params)


def alone():
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "lake")
        os.makedirs(root)
        write(os.path.join(root, "t.lance"))
        open(os.path.join(folder, "squire.toml"), "w").write(f'[registry]\nroot = "{root}/_squire"\n')
        register(folder, root)
        for column, kind, params in CASES:
            a = timed(lambda: theirs(os.path.join(root, "t.lance"), column, kind, params))
            report = os.path.join(folder, "report.json")
            b = timed(lambda: quiet([A.binary, "build", "table/a/t", "--columns", column, "--type", kind, "--params", json.dumps(params),
                                     "--replace", "--config", os.path.join(folder, "squire.toml"), "--json", report]))
            estimate = json.load(open(report))["estimated_memory_bytes"] >> 20
            print(f"| {kind} on {A.rows} rows: pylance, squire (estimate {estimate} MiB) | {a:.1f} s | {b:.1f} s | {b / a:.2f} |", flush=True)


def nats(folder):
    program = os.path.join(os.path.dirname(sys.executable), "nats-server")
    config = os.path.join(folder, "nats.conf")
    open(config, "w").write(f'listen: 127.0.0.1:-1\nports_file_dir: "{folder}"\njetstream {{ store_dir: "{folder}/nats" }}\n')
    server = subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ports = os.path.join(folder, f"nats-server_{server.pid}.ports")
    while not (os.path.exists(ports) and "127.0.0.1:" in open(ports).read()):
        time.sleep(0.05)
    return server, json.load(open(ports))["nats"][0]


def replicas(n, column, kind, params):
    """Seconds of one shared build by n replicas of one processor each."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "lake")
        os.makedirs(root)
        write(os.path.join(root, "t.lance"))
        server, url = nats(folder)
        sets = ["--set", "bus.kind=nats", "--set", f"bus.url={url}", "--set", "limits.distribute_above=1MiB", "--set", "limits.concurrency=1"]
        open(os.path.join(folder, "squire.toml"), "w").write(f'[registry]\nroot = "{root}/_squire"\n')
        register(folder, root)
        config = ["--config", os.path.join(folder, "squire.toml")]
        running = [subprocess.Popen(["taskset", "-c", str(i), A.binary, "serve", *config, *sets, "--set", "http.listen=127.0.0.1:0"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in range(n)]
        try:
            return timed(lambda: quiet([A.binary, "submit", "table/a/t", "--columns", column, "--type", kind, "--params", json.dumps(params),
                                        "--wait=1h", *config, *sets]))
        finally:
            for process in running + [server]:
                process.send_signal(signal.SIGTERM)
                process.wait()


print("| case | first | second | ratio |\n|---|---|---|---|", flush=True)
alone()
for column, kind, params in CASES[::-1]:
    one, two = replicas(1, column, kind, params), replicas(2, column, kind, params)
    print(f"| {kind}: one replica, two replicas | {one:.1f} s | {two:.1f} s | {one / two:.2f} times as fast |", flush=True)
print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} processors, pylance {lance.__version__}")
