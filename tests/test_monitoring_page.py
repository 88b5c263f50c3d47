# SPDX-License-Identifier: Apache-2.0
"""That docs/monitoring.md, the dashboard and the rules name what the daemon shows, and are as they are made.

To write the page's table anew: `python -m tests.test_monitoring_page`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotwatch.metrics import Metrics
from spotwatch.relay.metrics import RelayMetrics

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/monitoring.md"
DASHBOARD = ROOT / "deploy/grafana/spotwatch.json"
RULES = ROOT / "deploy/prometheus/spotwatch.rules.yml"
_BEGIN, _END = "<!-- made by tests/test_monitoring_page.py -->\n", "<!-- end -->\n"
_MACROS = {"$__rate_interval", "$__range", "$job", "$instance", "$provider"}


def table() -> str:
    """Return the table of all metrics, as the registries describe them."""
    rows = ["| metric | type | labels | says |", "|---|---|---|---|"]
    for registry in (Metrics(["aws"], ["aws"]).registry, RelayMetrics(["mailgun"]).registry):
        for family in registry.collect():
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(f"`{label}`" for label in samples[0].labels if label != "le")
            row = f"| `{name}` | {family.type} | {labels} | {family.documentation} |"
            if row not in rows:
                rows.append(row)
    return "\n".join(rows) + "\n"


def names() -> set[str]:
    """Return the name of every series that a daemon or a relay shows."""
    daemon = Metrics(["aws", "digitalocean"], ["digitalocean"])
    daemon.add_process()
    text = daemon.render("")[0].decode() + RelayMetrics(["mailgun"]).render("")[0].decode()
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def questions() -> list[str]:
    """Return every expression of the dashboard."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return found + [one["expr"] for one in board["annotations"]["list"]]


def unknown(expr: str) -> set[str]:
    """Return the metrics in an expression that nobody shows."""
    return set(re.findall(r"\b(?:spotwatch|process)_[a-z0-9_]+", expr)) - names()


def test_the_table_of_metrics_is_as_the_code_has_it() -> None:
    """A metric that is added, changed or gone changes the page."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(_BEGIN)[2].partition(_END)[0] == table()


def test_rules_and_dashboard_ask_for_what_there_is() -> None:
    """A name that nobody shows would be an alert that never fires or a panel that stays empty."""
    rules = re.sub(r"(?m)^ *#.*$", "", RULES.read_text(encoding="utf-8"))
    rules = re.sub(r"name: spotwatch-\w+", "", rules)
    assert [unknown(expr) for expr in questions()] == [set()] * len(questions())
    assert unknown(rules) == set()


def test_each_metric_is_on_a_panel_or_in_a_rule() -> None:
    """What is measured can be seen, but for what only a relay's operator wants."""
    asked = " ".join([*questions(), RULES.read_text(encoding="utf-8")])
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names() if name.startswith("spotwatch_")}
    assert {name for name in shown if name not in asked} == {
        "spotwatch_relay_requests_total",
        "spotwatch_relay_letters_total",
        "spotwatch_relay_mailbox_errors_total",
        "spotwatch_relay_droplets",
    }


def test_the_rules_of_the_operator_are_as_they_are_made() -> None:
    """The manifest holds the rules that Prometheus reads, letter for letter."""
    script = ROOT / "deploy/prometheus/prometheusrule.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (ROOT / "deploy/kubernetes/prometheusrule.yaml").read_text(encoding="utf-8") == made.stdout


def test_the_dashboard_is_as_it_is_made() -> None:
    """Grafana's builders give the file that is shipped."""
    if importlib.util.find_spec("grafana_foundation_sdk") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("in CI this must run, but it lacks grafana-foundation-sdk")
        pytest.skip("lacks grafana-foundation-sdk")
    script = ROOT / "deploy/grafana/dashboard.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert DASHBOARD.read_text(encoding="utf-8") == made.stdout


def test_every_panel_is_complete() -> None:
    """Title, description, unit, a text for nothing, thresholds, a source that can be chosen, and room."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    panels: list[dict[str, Any]] = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        for text in (panel["title"], panel["description"], defaults["unit"], defaults["noValue"]):
            assert text, panel["title"]
        assert defaults["thresholds"]["steps"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_question_can_be_narrowed() -> None:
    """Each selector of each query holds job and machine, and uses no variable that is not filled."""
    for expr in questions():
        selectors = re.findall(r"\b(?:spotwatch|process)_[a-z0-9_]+(\{[^}]*\})?", expr)
        assert all('job=~"$job",instance=~"$instance"' in selector for selector in selectors), expr
        assert set(re.findall(r"\$\w+", expr)) <= _MACROS


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    PAGE.write_text(before + _BEGIN + table() + _END + rest.partition(_END)[2], encoding="utf-8")
