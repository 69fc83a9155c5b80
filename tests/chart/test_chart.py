"""The chart: rendered, refused, validated, and its queries asked of a real Prometheus that scrapes a real daemon.

`make test` runs it: python -m unittest discover -s tests/chart, with HELM, TEST_BIN and NODE_PATH in the environment.
UPDATE_GOLDEN=1 writes the golden file anew.
"""

import difflib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
import urllib.parse
import urllib.request

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import dashboards
import schema

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "chart"
CHART = ROOT / "chart"
HELM = os.environ.get("HELM", "helm")
BIN = pathlib.Path(os.environ.get("TEST_BIN", ""))
NODE_PATH = os.environ.get("NODE_PATH", "")
SHAPES = {"default": [], **{n: ["-f", str(HERE / f"values-{n}.yaml")] for n in ("everything", "cron", "tick", "minimal")}}
OTHERS = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
DAEMONS = ("squire-maintenance", "squire-reconcile", "squire-index-build")


def needs(what, there):
    if there:
        return lambda test: test

    def skipped(test):
        print(f"SKIPPED {test.__name__}: {what}", file=sys.stderr)
        return unittest.skip(what)(test)

    return skipped


has_helm = needs("helm is not here", shutil.which(HELM))
has_promtool = needs("promtool is not here", shutil.which("promtool"))
NATS = pathlib.Path(sys.executable).parent / "nats-server"
has_prometheus = needs("prometheus, nats-server or the built programs are not here", shutil.which("prometheus") and NATS.exists() and (BIN / DAEMONS[0]).exists())
has_binaries = needs("the built programs are not here (TEST_BIN)", (BIN / DAEMONS[0]).exists() and shutil.which(HELM))
has_models = needs("the schemas of other people's resources are not here", os.path.isdir(f"{NODE_PATH}/@kubernetes-models/keda") and shutil.which("node"))


def helm(*args):
    return subprocess.run([HELM, *args], capture_output=True, text=True)


def template(*args):
    made = helm("template", "squire", str(CHART), "--namespace", "lake", *args)
    if made.returncode:
        raise AssertionError(made.stderr)
    return made.stdout


def resources(text):
    return [r for r in yaml.safe_load_all(text) if r]


def of_kind(text, kind):
    return [r for r in resources(text) if r["kind"] == kind]


def config_of(text):
    return next(c for c in of_kind(text, "ConfigMap") if "squire.toml" in c["data"])["data"]["squire.toml"]


@has_helm
class Rendered(unittest.TestCase):
    def test_every_shape_lints(self):
        for name, args in SHAPES.items():
            with self.subTest(name):
                done = helm("lint", "--strict", str(CHART), *args)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_default_is_what_the_golden_file_says(self):
        golden, text = HERE / "golden" / "default.yaml", template()
        if os.environ.get("UPDATE_GOLDEN"):
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text)
        difference = difflib.unified_diff(golden.read_text().splitlines(), text.splitlines(), "golden", "rendered", lineterm="")
        self.assertEqual("\n".join(difference), "", "UPDATE_GOLDEN=1 writes it anew")

    def test_every_shape_is_valid_kubernetes(self):
        import kubernetes_validate

        for name, args in SHAPES.items():
            for resource in resources(template(*args)):
                if resource["kind"] in OTHERS:
                    continue
                with self.subTest(f"{name} {resource['kind']} {resource['metadata']['name']}"):
                    kubernetes_validate.validate(resource, "1.37", strict=True)

    @has_models
    def test_monitors_rules_and_scaled_objects_are_valid(self):
        mine = [r for args in SHAPES.values() for r in resources(template(*args)) if r["kind"] in OTHERS]
        self.assertEqual({r["kind"] for r in mine}, OTHERS)
        done = subprocess.run(["node", str(HERE / "crds.mjs")], input=json.dumps(mine), capture_output=True, text=True, env={**os.environ, "NODE_PATH": NODE_PATH})
        self.assertEqual((done.stdout, done.returncode), ("", 0), done.stderr)
        self.assertIn(f"{len(mine)} checked", done.stderr)

    @has_models
    def test_a_wrong_monitor_would_be_found(self):
        wrong = [{"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "x"}, "spec": {"endpoints": "none"}}]
        done = subprocess.run(["node", str(HERE / "crds.mjs")], input=json.dumps(wrong), capture_output=True, text=True, env={**os.environ, "NODE_PATH": NODE_PATH})
        self.assertIn("ServiceMonitor x", done.stdout)

    def test_nothing_is_written_until_somebody_says_so(self):
        self.assertIn('mode = "observe"', config_of(template()))

    def test_the_pods_may_do_nothing_that_they_need_not(self):
        for name, args in SHAPES.items():
            text = template(*args)
            pods = [d["spec"]["template"]["spec"] for d in of_kind(text, "Deployment")]
            pods += [j["spec"]["jobTemplate"]["spec"]["template"]["spec"] for j in of_kind(text, "CronJob")]
            self.assertTrue(pods, name)
            for pod in pods:
                with self.subTest(name):
                    self.assertFalse(pod["automountServiceAccountToken"])
                    self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                    self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
                    for container in pod["containers"]:
                        security = container["securityContext"]
                        self.assertEqual((security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]), (True, False))
                        self.assertEqual(security["capabilities"], {"drop": ["ALL"]})

    def test_a_pod_is_not_killed_while_it_drains(self):
        text = template(*SHAPES["everything"])
        periods = {d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for d in of_kind(text, "Deployment")}
        self.assertEqual(periods, {660})  # grace.drain = 10m, and a minute
        self.assertEqual({d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for d in of_kind(template(), "Deployment")}, {360})

    def test_secrets_are_references(self):
        for name, args in SHAPES.items():
            text = template(*args)
            self.assertFalse(of_kind(text, "Secret"), name)
        env = of_kind(template(*SHAPES["everything"]), "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"]
        reference = next(e for e in env if e["name"] == "AWS_SECRET_ACCESS_KEY")
        self.assertEqual(reference["valueFrom"], {"secretKeyRef": {"name": "lake", "key": "secret"}})

    def test_the_queue_scales_on_the_stream_of_the_estate(self):
        (scaled,) = of_kind(template(*SHAPES["everything"]), "ScaledObject")
        metadata = scaled["spec"]["triggers"][0]["metadata"]
        self.assertEqual((metadata["stream"], metadata["consumer"]), ("SQUIRE_PROD-LAKE_WORK", "pass"))

    def test_with_cron_jobs_the_daemons_have_no_clock_of_their_own(self):
        text = template(*SHAPES["tick"])
        self.assertEqual([j["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"][:2] for j in of_kind(text, "CronJob")], [["tick", "maintenance"], ["tick", "reconcile"]])
        env = {e["name"]: e.get("value") for e in of_kind(text, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"]}
        self.assertEqual(env["SQUIRE_SCHEDULE__MAINTENANCE"], "0 0 0 1 1 * 2099")
        jobs = of_kind(template(*SHAPES["cron"]), "CronJob")
        args = jobs[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(args, ["sweep", "--due", "--yes", "--config", "/etc/squire/squire.toml", "--log-format", "json", "--metrics-file", "/metrics/squire-maintenance.prom", "--limit", "20"])

    def test_the_network_is_closed_but_for_what_is_needed(self):
        (policy,) = of_kind(template(*SHAPES["everything"]), "NetworkPolicy")
        ports = [[p["port"] for p in rule["ports"]] for rule in policy["spec"]["egress"]]
        self.assertEqual(ports, [[53, 53], [4222], [443], [4318]])
        self.assertEqual(len(policy["spec"]["ingress"]), 1)


@has_helm
class Refused(unittest.TestCase):
    """What the schema and the checks do not let through, and what they say."""

    CASES = [
        (["replicas=2"], "'replicas' not allowed"),
        (["config.estate.mod=observe"], "'mod' not allowed"),
        (["config.estate.mode=everything"], "must be one of 'observe', 'compact', 'maintain'"),
        (["config.schedule.maintenance=hourly"], "/config/schedule/maintenance"),
        (["config.schedule.maintenance=0 99 * * * *"], "/config/schedule/maintenance"),
        (["config.schedule.maintenance=*/10 * * * *"], "/config/schedule/maintenance"),
        (["cron.maintenance.schedule=0 */10 * * * *"], "/cron/maintenance/schedule"),
        (["cron.maintenance.schedule=61 * * * *"], "/cron/maintenance/schedule"),
        (["config.bus.password=fake"], "'password' not allowed"),
        (["config.storage.aws_secret_access_key=fake"], "aws_secret_access_key"),
        (["config.policy.retention=soon"], "/config/policy/retention"),
        (["maintenance.replicas=2"], "needs config.bus.kind = nats"),
        (["indexBuild.enabled=true"], "needs config.bus.kind = nats"),
        (["run=cron", "cron.kind=tick"], "needs config.bus.kind = nats"),
        (["config.bus.kind=nats"], "needs config.bus.url"),
        (["config.grace.drain=soonish 1"], "/config/grace/drain"),
        (["run=sometimes"], "must be one of 'daemon', 'cron'"),
    ]

    def test_each(self):
        for sets, message in self.CASES:
            with self.subTest(sets):
                done = helm("template", "squire", str(CHART), *[a for s in sets for a in ("--set", s)])
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)

    def test_what_the_daemons_accept_is_accepted(self):
        for cron in ("0 */10 * * * *", "0 30 2 * * Mon-Fri", "0 0 0 1 1 * 2099", "15,45 0 1-5/2 ? JAN *"):
            with self.subTest(cron):
                schedule = json.dumps({"maintenance": cron})
                helm_says = helm("template", "squire", str(CHART), "--set-json", f"config.schedule={schedule}")
                self.assertEqual(helm_says.returncode, 0, helm_says.stderr[-300:])


class Generated(unittest.TestCase):
    def test_the_schema_is_what_the_configuration_page_makes(self):
        self.assertEqual(schema.PATH.read_text(), schema.rendered(), "python tests/chart/schema.py writes it")

    def test_the_dashboards_are_what_their_source_makes(self):
        for name in dashboards.DASHBOARDS:
            self.assertEqual((dashboards.OUT / f"{name}.json").read_text(), dashboards.rendered(name), "python tests/chart/dashboards.py writes them")
        self.assertEqual({p.stem for p in dashboards.OUT.glob("*.json")}, set(dashboards.DASHBOARDS))


@has_binaries
class Configuration(unittest.TestCase):
    """The file in the ConfigMap is exactly what the binaries read."""

    def test_each_binary_accepts_each_rendered_file(self):
        for name, args in SHAPES.items():
            text = config_of(template(*args))
            # Mounted files are not on this machine; their paths stay as they are.
            with tempfile.TemporaryDirectory() as tmp:
                path = pathlib.Path(tmp) / "squire.toml"
                path.write_text(text)
                for program in DAEMONS:
                    with self.subTest(f"{name} {program}"):
                        done = subprocess.run([BIN / program, "--config", path, "--check-config"], capture_output=True, text=True)
                        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_file_with_a_mistake_would_be_refused(self):
        done = subprocess.run([BIN / DAEMONS[0], "--config", "-", "--check-config"], input=config_of(template()).replace("mode =", "mod ="), capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)

    def test_a_clock_that_never_strikes_is_a_clock(self):
        done = subprocess.run([BIN / DAEMONS[0], "--set", "schedule.maintenance=0 0 0 1 1 * 2099", "--check-config"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Alerts(unittest.TestCase):
    def test_each_has_a_severity_and_an_entry_in_the_runbook(self):
        headings = {h.strip().lower() for h in re.findall(r"^## (.*)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)}
        rules = [r for f in sorted((CHART / "alerts").glob("*.yaml")) for g in yaml.safe_load(f.read_text())["groups"] for r in g["rules"]]
        self.assertGreater(len(rules), 20)
        for rule in rules:
            with self.subTest(rule["alert"]):
                self.assertIn(rule["labels"]["severity"], ("page", "ticket"))
                self.assertEqual(rule["annotations"]["runbook_url"], f"docs/runbook.md#{rule['alert'].lower()}")
                self.assertIn(rule["alert"].lower(), headings)
                self.assertIn("absent(", rule["expr"])
        self.assertEqual(headings - {r["alert"].lower() for r in rules}, set(), "entries of alerts that are no more")

    @has_promtool
    def test_they_fire_and_are_quiet_as_their_tests_say(self):
        for command in (["check", "rules", *(CHART / "alerts").glob("*.yaml")], ["test", "rules", *(CHART / "alerts" / "tests").glob("*.yaml")]):
            done = subprocess.run(["promtool", *command], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_tests(self):
        for file in (CHART / "alerts").glob("*.yaml"):
            names = [r["alert"] for g in yaml.safe_load(file.read_text())["groups"] for r in g["rules"]]
            tested = [t["name"] for t in yaml.safe_load((CHART / "alerts" / "tests" / file.name).read_text())["tests"]]
            for name in names:
                self.assertIn(f"{name} fires", tested)
                self.assertIn(f"{name} is quiet", tested)
            self.assertIn("every alert fires on silence", tested)


class Image(unittest.TestCase):
    """What a container engine would show, without one: paths, user and linked libraries."""

    DOCKERFILE = (ROOT / "Dockerfile").read_text()
    # What the final image (distroless cc) carries.
    CARRIED = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

    def test_it_carries_every_program_of_the_chart_and_runs_as_nobody(self):
        final = self.DOCKERFILE.split("FROM ")[-1]
        for program in (*DAEMONS, "squire-registry"):
            self.assertIn(f"/target/release/{program} ", final)
        self.assertIn("/usr/local/bin/\n", final)
        self.assertIn("USER 65532:65532", final)
        self.assertNotRegex(final, r"(?m)^USER (root|0)")

    def test_every_manifest_of_the_workspace_is_copied_first(self):
        members = [p.relative_to(ROOT) for d in ("shared", "services", "tests") for p in (ROOT / d).rglob("Cargo.toml")]
        for manifest in members:
            self.assertIn(f"COPY {manifest} {manifest}\n", self.DOCKERFILE)

    def test_the_layer_of_dependencies_has_a_source_for_every_target(self):
        defaults = {"bench": "benches", "example": "examples", "test": "tests"}
        with tempfile.TemporaryDirectory() as tmp:
            for manifest in [p.relative_to(ROOT) for d in ("shared", "services", "tests") for p in (ROOT / d).rglob("Cargo.toml")]:
                (pathlib.Path(tmp) / manifest).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / manifest, pathlib.Path(tmp) / manifest)
            script = str(ROOT / "scripts" / "empty_crates.sh")
            subprocess.run(["sh", script], cwd=tmp, check=True)
            for manifest in pathlib.Path(tmp).rglob("Cargo.toml"):
                read = tomllib.loads(manifest.read_text())
                for kind, folder in defaults.items():
                    for target in read.get(kind, []):
                        path = manifest.parent / target.get("path", f"{folder}/{target['name']}.rs")
                        self.assertTrue(path.exists(), path)
                self.assertTrue((manifest.parent / "src" / "lib.rs").exists())
            subprocess.run(["sh", script, "--remove"], cwd=tmp, check=True)
            self.assertEqual(list(pathlib.Path(tmp).rglob("*.rs")), [])

    @has_binaries
    def test_the_programs_need_only_libraries_that_it_carries(self):
        for program in (*DAEMONS, "squire-registry"):
            linked = subprocess.run(["ldd", BIN / program], capture_output=True, text=True, check=True).stdout
            names = {os.path.basename(line.split()[0]) for line in linked.splitlines() if line.strip()}
            self.assertLessEqual(names, self.CARRIED, program)


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = condition()
            if found:
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come about within {seconds} s")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


# A metric's name, and the labels that a query asks of it.
SELECTOR = re.compile(r"\b((?:squire|process|lance)_[a-z_]+)(?:\{([^}]*)\})?")
# Grouping labels that the scrape adds, and the histogram's own.
SCRAPED = {"namespace", "job", "instance", "le"}
# Lance's counters of what went wrong: they appear with the first occurrence, with the labels that its page of metrics names.
ON_OCCURRENCE = {"lance_object_store_throttle_total": {"status", "base"}, "lance_object_store_errors_total": {"operation", "base"}}


@has_prometheus
class Live(unittest.TestCase):
    """A real Prometheus scrapes a running fleet (real NATS, real S3); every query is asked of it."""

    @classmethod
    def setUpClass(cls):
        cls.stack = []
        cls.tmp = tempfile.TemporaryDirectory()
        tmp = pathlib.Path(cls.tmp.name)
        (tmp / "s3").mkdir()
        command = [sys.executable, str(ROOT / "tests" / "py" / "s3.py"), str(tmp / "s3")]
        s3 = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.stack.append(s3)
        options = json.loads(s3.stdout.readline())["options"]
        storage = "".join(f"{k} = {json.dumps(v)}\n" for k, v in options.items())
        nats, prometheus_port = free(), free()
        config = tmp / "squire.toml"
        config.write_text(
            '[estate]\nroots = ["s3://lake"]\n[schedule]\nmaintenance = "*/2 * * * * *"\nreconcile = "*/3 * * * * *"\n'
            f'[bus]\nkind = "nats"\nurl = "nats://127.0.0.1:{nats}"\n[registry]\nroot = "{tmp}/registry"\n[storage]\n{storage}'
        )
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SQUIRE_")}
        subprocess.run([BIN / "squire-registry", "init", str(tmp / "registry"), "--name", "default"], check=True, capture_output=True, env=environment)
        cls.log = open(tmp / "serve.log", "w")

        def start(*command, **more):
            cls.stack.append(subprocess.Popen(command, stdout=cls.log, stderr=cls.log, env={**environment, **more}))

        start(NATS, "-js", "-sd", tmp / "nats", "-a", "127.0.0.1", "-p", str(nats))
        wait_for("NATS", lambda: socket.create_connection(("127.0.0.1", nats), timeout=1).close() is None)
        # As the chart has them: two replicas of the first, one of the others, each Service a job of its own.
        jobs = {}
        for program in (DAEMONS[0], *DAEMONS):
            listen = f"127.0.0.1:{free()}"
            start(BIN / program, "serve", "--config", config, "--log-format", "json", SQUIRE_HTTP__LISTEN=listen)
            jobs.setdefault(program, []).append(listen)
        scrape = [{"job_name": job, "static_configs": [{"targets": targets, "labels": {"namespace": "lake"}}]} for job, targets in jobs.items()]
        (tmp / "prometheus.yml").write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": scrape}))
        start("prometheus", f"--config.file={tmp}/prometheus.yml", f"--storage.tsdb.path={tmp}/tsdb", f"--web.listen-address=127.0.0.1:{prometheus_port}")
        cls.url = f"http://127.0.0.1:{prometheus_port}/api/v1"
        try:
            for task in ("maintenance", "reconcile"):
                wait_for(f"a success of {task} that Prometheus saw", lambda: cls.ask(f'squire_last_success_timestamp_seconds{{task="{task}"}} > 0'))
            wait_for("four daemons", lambda: len(cls.ask("squire_build_info")) == 4)
        except AssertionError as error:
            log = (tmp / "serve.log").read_text()[-2000:]
            cls.tearDownClass()
            raise AssertionError(f"{error}; {log}") from None

    @classmethod
    def tearDownClass(cls):
        for process in reversed(cls.stack):
            if process.stdin:
                process.stdin.close()
            else:
                process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in cls.stack:
            if process.stdout:
                process.stdout.close()
        cls.log.close()
        cls.tmp.cleanup()

    @classmethod
    def ask(cls, query):
        answer = json.loads(get(f"{cls.url}/query?{urllib.parse.urlencode({'query': query})}"))
        if answer["status"] != "success":
            raise AssertionError(f"{query}: {answer}")
        return answer["data"]["result"]

    def known(self, metric):
        found = json.loads(get(f"{self.url}/series?{urllib.parse.urlencode({'match[]': metric})}"))["data"]
        return set().union(*[set(s) for s in found]) if found else set()

    def check(self, where, query):
        with self.subTest(f"{where}: {query}"):
            self.ask(query)
            metrics = SELECTOR.findall(query)
            self.assertTrue(metrics, query)
            labels = set()
            for metric, selector in metrics:
                known = self.known(metric) or ON_OCCURRENCE.get(metric, set())
                self.assertTrue(known, f"{metric} is not exposed")
                labels |= known
                for label in re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selector):
                    self.assertIn(label, known | SCRAPED, f"{metric} has no label {label}")
            for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query):
                for label in re.split(r"\s*,\s*", group.strip()):
                    self.assertIn(label, labels | SCRAPED, f"grouped by {label}")

    def test_every_query_of_every_dashboard(self):
        for name in dashboards.DASHBOARDS:
            for title, query in dashboards.queries(name):
                self.check(f"{name}, {title}", query)

    def test_every_query_of_every_alert(self):
        for file in sorted((CHART / "alerts").glob("*.yaml")):
            for group in yaml.safe_load(file.read_text())["groups"]:
                for rule in group["rules"]:
                    self.check(rule["alert"], rule["expr"])

    def test_a_query_of_a_metric_that_is_not_there_would_be_found(self):
        with self.assertRaises(AssertionError):
            self.assertTrue(self.known("squire_no_such_metric"))

    def test_a_healthy_fleet_pages_nobody(self):
        for file in ("maintenance.yaml", "reconcile.yaml"):
            for group in yaml.safe_load((CHART / "alerts" / file).read_text())["groups"]:
                for rule in group["rules"]:
                    if rule["labels"]["severity"] == "page":
                        with self.subTest(rule["alert"]):
                            self.assertEqual(self.ask(rule["expr"]), [])


if __name__ == "__main__":
    unittest.main()
