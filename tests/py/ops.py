"""What other people's writers and readers do to datasets on a server, through pylance: one JSON object in, one out.

{"op": NAME, "uri": URI, ...} → {...}, or {"error": TEXT}. `s3.py` reads such lines from standard input.
"""
import datetime, hashlib, hmac, json, time, urllib.request

import lance, pyarrow as pa

WORDS = ("harbour", "ledger", "copper", "vessel", "signal", "archive", "meadow", "lantern")


def rows(n, start):
    ids = list(range(start, start + n))
    return pa.table({"id": ids, "kind": [WORDS[i % 4] for i in ids], "body": [f"{WORDS[i * 7 % 8]} {WORDS[i % 8]} {i}" for i in ids]})


def digest(table):
    """Number and multiset of rows, the order left out."""
    lines = sorted(json.dumps(row, sort_keys=True, default=str) for row in table.to_pylist())
    return {"rows": len(lines), "digest": hashlib.sha256("\n".join(lines).encode()).hexdigest()}


class Ops:
    def __init__(self, options):
        self.options = options

    def open(self, uri, **at):
        return lance.dataset(uri, storage_options=self.options, **at)

    def run(self, line):
        args = json.loads(line)
        op, uri = args.pop("op"), args.pop("uri")
        try:
            return getattr(self, "do_" + op)(uri, **args) or {}
        except Exception as e:  # an answer, which the test judges
            return {"error": f"{type(e).__name__}: {e}"}

    def do_write(self, uri, rows_each=30, appends=1, start=0, overwrite=False):
        """Creates, appends or overwrites, one fragment and one version each."""
        for i in range(appends):
            try:
                self.open(uri)
                mode = "overwrite" if overwrite else "append"
            except Exception:
                mode = "create"
            lance.write_dataset(rows(rows_each, start + i * rows_each), uri, mode=mode, storage_options=self.options)
        return {"version": self.open(uri).version}

    def do_versioning(self, uri):
        """From now on the bucket keeps what is overwritten or deleted (PutBucketVersioning, signed by hand)."""
        bucket = uri.split("/")[2]
        body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        now = datetime.datetime.now(datetime.timezone.utc)
        day, at, region = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ"), self.options["aws_region"]
        host, digest = self.options["aws_endpoint"].split("://")[1], hashlib.sha256(body).hexdigest()
        signed = "host;x-amz-content-sha256;x-amz-date"
        asked = f"PUT\n/{bucket}\nversioning=\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{at}\n\n{signed}\n{digest}"
        scope = f"{day}/{region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
        key = ("AWS4" + self.options["aws_secret_access_key"]).encode()
        for part in (day, region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        credential = f"{self.options['aws_access_key_id']}/{scope}"
        headers = {"x-amz-content-sha256": digest, "x-amz-date": at,
                   "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={signed}, Signature={signature}"}
        url = f"{self.options['aws_endpoint']}/{bucket}?versioning"
        with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers, method="PUT")) as answer:
            return {"status": answer.status}

    def do_index(self, uri, column, type):
        ds = self.open(uri)
        if type == "IVF_PQ":
            ds.create_index(column, "IVF_PQ", num_partitions=2, num_sub_vectors=2)
        else:
            ds.create_scalar_index(column, type)
        return {"version": ds.version}

    def do_compact(self, uri):
        ds = self.open(uri)
        ds.optimize.compact_files()
        return {"version": self.open(uri).version}

    def do_delete(self, uri, where):
        ds = self.open(uri)
        ds.delete(where)
        return {"version": ds.version}

    def do_update(self, uri, where, values):
        ds = self.open(uri)
        ds.update(values, where=where)
        return {"version": ds.version}

    def do_config(self, uri, times=1, values=None):
        """Versions without data; or keys of the table's own config, in one version."""
        ds = self.open(uri)
        if values:
            ds.update_config(values)
            return {"version": ds.version}
        for i in range(times):
            ds.update_config({"note": str(i)})
        return {"version": ds.version}

    def do_tag(self, uri, name, version):
        self.open(uri).tags.create(name, version)

    def do_branch(self, uri, name, version):
        self.open(uri).create_branch(name, version)

    def do_restore(self, uri, version):
        ds = self.open(uri, version=version)
        ds.restore()
        return {"version": self.open(uri).version}

    def do_clone(self, uri, to, version):
        self.open(uri).shallow_clone(to, version, storage_options=self.options)

    def do_read(self, uri, version=None, tag=None, branch=None):
        """Every row of HEAD, of a version, a tag or a branch, the indices of HEAD checked against a scan."""
        ds = self.open(uri, version=tag if tag is not None else version)
        if branch is not None:
            ds = ds.checkout_version((branch, None))
        table = ds.to_table()
        out = digest(table)
        out["version"], out["fragments"] = ds.version, len(ds.get_fragments())
        if version is None and tag is None and branch is None:
            out["unindexed"] = self.check(ds, table)
        return out

    def check(self, ds, table):
        ds.validate()
        unindexed = 0
        for index in ds.describe_indices():
            column, kind = index.field_names[0], index.index_type.upper()
            unindexed += ds.stats.index_stats(index.name)["num_unindexed_rows"]
            values = list(zip(table["id"].to_pylist(), table[column].to_pylist()))
            if kind in ("BTREE", "BITMAP"):
                for value in sorted({v for _, v in values}, key=str)[::11]:
                    text = f"'{value}'" if isinstance(value, str) else value
                    found = sorted(ds.to_table(columns=["id"], filter=f"{column} = {text}")["id"].to_pylist())
                    same(found, sorted(i for i, v in values if v == value), f"{index.name}: {column} = {value}")
            elif kind in ("INVERTED", "FTS"):
                for word in WORDS[:3]:
                    query = {"query": word, "columns": [column]}
                    found = sorted(ds.to_table(columns=["id"], full_text_query=query, limit=10**6)["id"].to_pylist())
                    same(found, sorted(i for i, v in values if word in v.split()), f"{index.name}: {word}")
            else:
                raise ValueError(f"no check for index type {kind}")
        return unindexed

    def do_three_calls(self, uri, all):
        """What a cron job without Squire would do to each of them; in seconds."""
        start = time.perf_counter()
        for uri in all:
            ds = self.open(uri)
            ds.optimize.compact_files()
            ds.optimize.optimize_indices()
            ds.cleanup_old_versions(datetime.timedelta(days=7))
        return {"seconds": time.perf_counter() - start}

    def do_versions(self, uri):
        return {"versions": [v["version"] for v in self.open(uri).versions()]}


def same(found, wanted, what):
    if found != wanted:
        raise ValueError(f"{what}: {len(found)} rows by index, {len(wanted)} by scan")
