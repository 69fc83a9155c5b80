"""Makes chart/dashboards/*.json. `python tests/chart/dashboards.py` writes them; the test compares.

A dashboard is rows of panels, a panel is a title, a unit and its queries: what differs between panels, and nothing else.
"""

import json
import pathlib

OUT = pathlib.Path(__file__).resolve().parents[2] / "chart" / "dashboards"
SELECT = '{namespace=~"$namespace"}'


def with_namespace(query):
    """Every selector of a squire metric gets the namespace variable; `%` stands for it."""
    return query.replace("{%}", SELECT).replace("{%,", '{namespace=~"$namespace", ')


def panel(kind, title, unit, queries, width=8, height=7, about="", **options):
    return {"kind": kind, "title": title, "unit": unit, "queries": queries, "width": width, "height": height, "about": about, "options": options}


def stat(title, unit, query, about="", steps=None, width=4):
    return panel("stat", title, unit, [(query, "")], width, 4, about, steps=steps)


def lines(title, unit, *queries, about="", width=8, stacked=False):
    return panel("timeseries", title, unit, list(queries), width, 8, about, stacked=stacked)


ANY = [(None, "green"), (1, "red")]
DASHBOARDS = {
    "fleet": (
        "Squire: the fleet",
        [
            (
                "Now",
                [
                    stat("Since the last good sweep", "s", 'time() - max(squire_last_success_timestamp_seconds{%, task="maintenance"} > 0)', "Compare with the schedule.", [(None, "green"), (3600, "orange"), (86400, "red")]),
                    stat("Datasets seen", "short", "sum(squire_datasets{%})"),
                    stat("Due", "short", "max(squire_due_datasets{%})"),
                    stat("Failed", "short", 'sum(squire_datasets{%, outcome="failed"})', steps=ANY),
                    stat("Blocks by verification", "short", 'sum(squire_blocks{%, reason="verify"})', steps=ANY),
                    stat("Broken invariants", "short", "sum(squire_invariant_violations_total{%})", steps=ANY),
                ],
            ),
            (
                "Work",
                [
                    lines("Datasets by outcome", "short", ("sum by (outcome, reason) (squire_datasets{%}) > 0", "{{outcome}} {{reason}}"), stacked=True, about="Of the last sweep; the sum is what was seen."),
                    lines("Passes", "ops", ("sum by (outcome) (rate(squire_passes_total{%}[$__rate_interval]))", "{{outcome}}")),
                    lines("Steps that did something, median and 95 %", "s", ('histogram_quantile(0.5, sum by (le, step) (rate(squire_step_duration_seconds_bucket{%}[$__rate_interval])))', "{{step}} 50 %"), ('histogram_quantile(0.95, sum by (le, step) (rate(squire_step_duration_seconds_bucket{%}[$__rate_interval])))', "{{step}} 95 %")),
                    lines("Commits that lost a race", "short", ("sum by (step) (increase(squire_commit_conflicts_total{%}[$__rate_interval]))", "{{step}}")),
                    lines("Sweep duration, 95 %", "s", ("histogram_quantile(0.95, sum by (le) (rate(squire_sweep_duration_seconds_bucket{%}[$__rate_interval])))", "sweep")),
                    lines("Longest waiting dataset", "s", ("time() - max(squire_oldest_due_timestamp_seconds{%} > 0)", "due for")),
                ],
            ),
            (
                "Bus and processes",
                [
                    lines("Queues", "short", ("sum by (stream, state) (squire_queue_messages{%})", "{{stream}} {{state}}")),
                    lines("Dead letters", "short", ("sum by (stream) (squire_dead_letters{%})", "{{stream}}")),
                    lines("Messages", "ops", ("sum by (stream, outcome) (rate(squire_messages_total{%}[$__rate_interval]))", "{{stream}} {{outcome}}")),
                    lines("Memory", "bytes", ('process_resident_memory_bytes{%} and on (namespace, job, instance) squire_build_info{%}', "{{instance}}"), ("max(squire_memory_limit_bytes{%})", "limits.memory")),
                    lines("Claims", "short", ("sum(squire_claims_held{%})", "held"), ("sum(increase(squire_claims_lost_total{%}[$__rate_interval]))", "lost")),
                    lines("Reading the registry, 95 %", "s", ("histogram_quantile(0.95, sum by (le) (rate(squire_registry_snapshot_duration_seconds_bucket{%}[$__rate_interval])))", "snapshot")),
                ],
            ),
        ],
    ),
    "storage": (
        "Squire: bytes and requests",
        [
            (
                "Bytes",
                [
                    lines("Stored bytes by class", "bytes", ("sum by (class) (squire_stored_bytes{%})", "{{class}}"), stacked=True, width=12, about="The sum is what the buckets hold."),
                    lines("Bytes held, and by what", "bytes", ("sum by (reason) (squire_held_bytes{%}) > 0", "{{reason}}"), stacked=True, width=12),
                    lines("Rewritten and wasted", "Bps", ("sum(rate(squire_rewritten_bytes_total{%}[$__rate_interval]))", "rewritten"), ("sum(rate(squire_wasted_bytes_total{%}[$__rate_interval]))", "wasted")),
                    lines("Freed", "Bps", ("sum by (by) (rate(squire_reclaimed_bytes_total{%}[$__rate_interval]))", "{{by}}")),
                    lines("Versions removed", "ops", ("sum(rate(squire_versions_removed_total{%}[$__rate_interval]))", "removed"), ("sum(rate(squire_delete_failures_total{%}[$__rate_interval]))", "failed deletes")),
                ],
            ),
            (
                "Fragments and indices",
                [
                    lines("Fragments", "ops", ("sum(rate(squire_fragments_removed_total{%}[$__rate_interval]))", "removed"), ("sum(rate(squire_fragments_added_total{%}[$__rate_interval]))", "added")),
                    lines("Rows without an index", "short", ("sum(squire_unindexed_rows{%})", "rows")),
                    lines("Index work", "ops", ("sum by (type, outcome) (rate(squire_index_folds_total{%}[$__rate_interval])) > 0", "fold {{type}} {{outcome}}"), ("sum by (type, outcome) (rate(squire_index_builds_total{%}[$__rate_interval])) > 0", "build {{type}} {{outcome}}")),
                ],
            ),
            (
                "Requests",
                [
                    lines("Requests by operation", "reqps", ("sum by (operation) (rate(lance_object_store_requests_total{%}[$__rate_interval]))", "{{operation}}"), width=12),
                    lines("Throttled and failed", "reqps", ("sum by (status) (rate(lance_object_store_throttle_total{%}[$__rate_interval]))", "throttled {{status}}"), ("sum by (operation) (rate(lance_object_store_errors_total{%}[$__rate_interval]))", "failed {{operation}}"), width=12),
                    lines("Rewriting left for today", "bytes", ("max(squire_budget_remaining_bytes{%})", "budget")),
                ],
            ),
            (
                "Findings",
                [
                    lines("Findings that stand", "short", ("sum by (kind, severity) (squire_findings{%}) > 0", "{{severity}} {{kind}}"), width=16),
                    lines("Trash past its deadline", "short", ("sum(squire_trash_overdue{%})", "tables")),
                ],
            ),
        ],
    ),
}


def rendered_panel(spec, x, y, number):
    defaults = {"unit": spec["unit"], "custom": {}}
    steps = spec["options"].get("steps")
    if steps:
        defaults["thresholds"] = {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}
    if spec["kind"] == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never", "stacking": {"mode": "normal" if spec["options"].get("stacked") else "none"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area"}
    return {
        "id": number,
        "type": spec["kind"],
        "title": spec["title"],
        "description": spec["about"],
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": spec["width"], "h": spec["height"]},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + i), "expr": with_namespace(query), "legendFormat": legend, "datasource": {"type": "prometheus", "uid": "${datasource}"}}
            for i, (query, legend) in enumerate(spec["queries"])
        ],
    }


def rendered(name):
    title, rows = DASHBOARDS[name]
    panels, y, number = [], 0, 1
    for row, specs in rows:
        panels.append({"id": number, "type": "row", "title": row, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        number, y, x, high = number + 1, y + 1, 0, 0
        for spec in specs:
            if x + spec["width"] > 24:
                x, y, high = 0, y + high, 0
            panels.append(rendered_panel(spec, x, y, number))
            number, x, high = number + 1, x + spec["width"], max(high, spec["height"])
        y += high
    board = {
        "uid": f"squire-{name}",
        "title": title,
        "tags": ["squire"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {"name": "namespace", "type": "query", "label": "Namespace", "datasource": {"type": "prometheus", "uid": "${datasource}"}, "query": "label_values(squire_build_info, namespace)", "refresh": 2, "includeAll": True, "allValue": ".*", "multi": True},
            ]
        },
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


def queries(name):
    """Every query of a dashboard, with Grafana's variables filled in: title and PromQL."""
    for panel in json.loads(rendered(name))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$namespace", ".*").replace("$__rate_interval", "5m")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for each in DASHBOARDS:
        (OUT / f"{each}.json").write_text(rendered(each))
