"""Makes chart/values.schema.json: the chart's own keys, and the configuration as docs/configuration.md has it.

`python tests/chart/schema.py` writes it; the test compares.
"""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = ROOT / "chart" / "values.schema.json"


def text(**more):
    return {"type": "string", **more}


WHOLE = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
DURATION = text(pattern=r"^\s*(\d+\s*[A-Za-z]+\s*)+$")
SIZE = {"anyOf": [WHOLE, text(pattern=r"^\s*\d+(\.\d+)?\s*([KMGTPE]i?)?B?\s*$")]}


def cron_field(numbers, names=""):
    one = f"({numbers}{'|' + names if names else ''})"
    part = rf"([*?]|{one}(-{one})?)(/[1-9]\d?)?"
    return f"{part}(,{part})*"


NAMES = "[A-Za-z]{3}"
SIXTY, HOUR, DAY = r"[0-5]?\d", r"[01]?\d|2[0-3]", r"0?[1-9]|[12]\d|3[01]"
FIVE = [cron_field(SIXTY), cron_field(HOUR), cron_field(DAY), cron_field(r"0?[1-9]|1[0-2]", NAMES), cron_field("[0-7]", NAMES)]
# A CronJob's five fields, and the daemons' six with seconds first (and a year, if wanted).
CRON5 = text(pattern="^" + r"\s+".join(FIVE) + "$")
CRON6 = text(pattern="^" + r"\s+".join([cron_field(SIXTY), *FIVE]) + r"(\s+(\*|\d{4}))?$")

TYPES = {
    "text": text(),
    "duration": DURATION,
    "size": SIZE,
    "whole number": WHOLE,
    "number": {"type": "number", "minimum": 0},
    "`true` or `false`": FLAG,
    "list of texts": {"type": "array", "items": text()},
    "table of whole numbers": {"type": "object", "additionalProperties": WHOLE},
    "list of tables": {"type": "array", "items": {"type": "object"}},
    "address and port": text(),
}
# Secrets come from Secrets, by environment or as mounted files: the ConfigMap holds none.
SECRET_KEYS = {"bus.password", "bus.token"}
SECRET_OPTION = r"(secret|password|token|access_key|account_key|sas|credentials_json|customer_key)"


def keys():
    """Every key of docs/configuration.md: name, type, accepted values."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    for part in page.split("\n### `")[1:]:
        name, rest = part.split("`", 1)
        kind = rest.strip().split("\n", 1)[0].split(" · ")[0].strip()
        values = re.findall(r"^- `([a-z_]+)`: ", rest.split("\n## ")[0], re.M)
        yield name, kind, values


def configuration():
    sections = {}
    for name, kind, values in keys():
        if name.startswith("storage."):
            continue
        if name in SECRET_KEYS:
            continue
        shape = text(enum=values) if kind == "one of the values below" else TYPES[kind]
        if name in ("schedule.maintenance", "schedule.reconcile"):
            shape = CRON6
        at = sections
        *path, last = name.split(".")
        for step in path:
            at = at.setdefault(step, {})
        at[last] = shape

    def closed(tree):
        if "type" in tree and isinstance(tree["type"], str) or "anyOf" in tree:
            return tree
        return {"type": "object", "additionalProperties": False, "properties": {k: closed(v) for k, v in tree.items()}}

    options = {
        "type": "object",
        "propertyNames": {"not": {"pattern": SECRET_OPTION}},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }
    made = closed(sections)
    made["properties"]["storage"] = {
        "type": "object",
        "propertyNames": {"not": {"pattern": SECRET_OPTION}},
        "patternProperties": {"://": options, "^delete$": options},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }
    return made


def closed(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "properties": properties, **({"required": list(required)} if required else {})}


def items(shape):
    return {"type": "array", "items": shape}


STRINGS = {"type": "object", "additionalProperties": text()}
OPEN = {"type": "object"}
PORTS = items({"type": "integer", "minimum": 1, "maximum": 65535})
SECRET_ENV = items(closed(("name", "secret", "key"), name=text(pattern="^[A-Za-z_][A-Za-z0-9_]*$"), secret=text(minLength=1), key=text(minLength=1)))
ENV = items(closed(("name", "value"), name=text(pattern="^[A-Za-z_][A-Za-z0-9_]*$"), value={"type": ["string", "number", "boolean"]}))
AUTOSCALING = closed(
    kind=text(enum=["none", "cpu", "queue"]),
    min={"type": "integer", "minimum": 1},
    max={"type": "integer", "minimum": 1},
    cpu={"type": "integer", "minimum": 1, "maximum": 100},
    queue={"type": "integer", "minimum": 1},
)


def daemon(autoscaling=False):
    more = {"autoscaling": AUTOSCALING} if autoscaling else {}
    return closed(enabled=FLAG, replicas=WHOLE, resources=OPEN, secretEnv=SECRET_ENV, **more)


def schema():
    job = closed(schedule=CRON5, args=items(text()))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Squire chart",
        **closed(
            image=closed(repository=text(minLength=1), tag=text(), pullPolicy=text(enum=["Always", "IfNotPresent", "Never"])),
            imagePullSecrets=items(closed(name=text())),
            nameOverride=text(),
            fullnameOverride=text(),
            run=text(enum=["daemon", "cron"]),
            config=configuration(),
            secretEnv=SECRET_ENV,
            env=ENV,
            bus=closed(
                credentialsSecret=text(), nkeySecret=text(), tlsSecret=text(), tlsClient=FLAG, monitoring=text(), account=text()
            ),
            serviceAccount=closed(create=FLAG, name=text(), annotations=STRINGS, labels=STRINGS, automount=FLAG),
            maintenance=daemon(autoscaling=True),
            reconcile=daemon(),
            indexBuild=daemon(autoscaling=True),
            cron=closed(
                kind=text(enum=["sweep", "tick"]),
                maintenance=job,
                reconcile=job,
                timeZone=text(minLength=1),
                metricsHostPath=text(pattern="^(/.*)?$"),
                activeDeadlineSeconds={"type": "integer", "minimum": 60},
                resources=OPEN,
            ),
            podDisruptionBudget=closed(enabled=FLAG, maxUnavailable={"anyOf": [{"type": "integer", "minimum": 0}, text(pattern=r"^\d+%$")]}),
            topologySpread=closed(
                enabled=FLAG, topologyKey=text(minLength=1), whenUnsatisfiable=text(enum=["ScheduleAnyway", "DoNotSchedule"])
            ),
            terminationMarginSeconds={"type": "integer", "minimum": 10},
            scratch=closed(sizeLimit=text(minLength=1)),
            nodeSelector=STRINGS,
            tolerations=items(OPEN),
            affinity=OPEN,
            podAnnotations=STRINGS,
            podLabels=STRINGS,
            priorityClassName=text(),
            networkPolicy=closed(
                enabled=FLAG,
                scrapeFrom=items(OPEN),
                natsPorts=PORTS,
                natsTo=items(OPEN),
                storagePorts=PORTS,
                storageTo=items(OPEN),
                tracingPorts=PORTS,
            ),
            monitoring=closed(
                kind=text(enum=["none", "service", "pod"]),
                interval=text(pattern=r"^\d+(ms|s|m)$"),
                labels=STRINGS,
                rules=FLAG,
                rulesLabels=STRINGS,
                dashboards=FLAG,
                dashboardsLabels=STRINGS,
                runbook=text(),
            ),
            **{"global": OPEN},
        ),
    }


def rendered():
    return json.dumps(schema(), indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(rendered())
