# SPDX-License-Identifier: Apache-2.0
"""A reclaim of a real daemon and trainer, as Prometheus, Alertmanager and the dashboard see it."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.real import monitored_reclaim
from tests.real.conftest import _require
from tests.real.dashboard_queries import Ask, asks, filled
from tests.real.monitored_reclaim import LISTENER, TRAINER, Seen
from tests.real.monitoring import DEPLOY, Monitoring, running, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]  # the reclaim takes 50 s, once for all tests

DASHBOARD = json.loads((DEPLOY / "grafana/spotwatch.json").read_text(encoding="utf-8"))
ASKS = asks(DASHBOARD)
NO_VALUE = {"Mailbox: the relay's last sign of life"}
"""Panels whose series have no value here, and so are NaN: no mailbox is read."""
Scene = tuple[Monitoring, Seen]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Play a reclaim, once; Prometheus keeps what it saw. It takes 50 s."""
    _require("prometheus", "prometheus-alertmanager")
    with running(tmp_path_factory.mktemp("monitoring")) as monitoring:
        yield monitoring, monitored_reclaim.play(monitoring, tmp_path_factory.mktemp("reclaim"))


def test_the_notice_reaches_people_and_resolves(scene: Scene) -> None:
    """Prometheus fires, Alertmanager delivers to the receiver of notices, and resolves when it is over."""
    monitoring, seen = scene
    assert seen.exit_code == 75
    for status in ("firing", "resolved"):
        alert = until(partial(monitoring.alerts, "SpotwatchNoticeActive", status, "notices"), 60, status)[0]
        assert alert["labels"] == {
            "alertname": "SpotwatchNoticeActive",
            "instance": TRAINER,
            "job": "spotwatch",
            "kind": "reclaim",
            "provider": "aws",
            "severity": "info",
        }
        assert alert["annotations"]["page"] == "docs/monitoring.md#a-notice-and-its-save"
    assert alert["endsAt"] > alert["startsAt"]


def test_a_machine_that_saved_and_went_wakes_nobody(scene: Scene) -> None:
    """Gone after its save: nothing is missed or lost, and the notice explains that nobody answers."""
    monitoring, seen = scene
    wrong = 'ALERTS{severity=~"critical|warning",alertstate="firing"}'
    assert monitoring.ask_range(wrong, seen.start, seen.gone) == []
    assert monitoring.ask(f'spotwatch:notice_last_known:max1h{{instance="{TRAINER}"}}')[0]["value"][1] == "1"
    assert [a for a in monitoring.told if a["labels"]["severity"] != "info"] == []


def test_the_order_of_things(scene: Scene) -> None:
    """As scrapes saw it: flushed before stopped, and work at risk until then."""
    monitoring, seen = scene
    phases = monitoring.ask_range(
        f'spotwatch_open_cases{{instance="{TRAINER}"}} > 0', seen.noticed, seen.gone
    )
    first = {one["metric"]["phase"]: one["values"][0][0] for one in phases}
    assert first["flushed"] < first["stopped"]
    (risk,) = monitoring.ask_range(
        f'spotwatch_work_at_risk_seconds{{instance="{TRAINER}"}} >= 0', seen.start, seen.gone
    )
    assert max(float(value) for _, value in risk["values"]) > 0


@pytest.mark.parametrize("ask", ASKS, ids=[f"{ask.panel}-{ask.ref}" for ask in ASKS])
def test_each_query_of_the_dashboard_has_an_answer(scene: Scene, ask: Ask) -> None:
    """With the variables filled as Grafana fills them, at least one series came of it, with a value."""
    monitoring, seen = scene
    expr = filled(ask.expr, range_seconds=seen.gone - seen.start)
    series = monitoring.ask_range(expr, seen.start, seen.gone)
    assert series, expr
    values = [float(value) for one in series for _, value in one["values"]]
    assert ask.panel in NO_VALUE or any(math.isfinite(value) for value in values), expr


def test_the_variables_of_the_dashboard(scene: Scene) -> None:
    """Each offers what there is, also of a machine that is gone."""
    monitoring, seen = scene
    offered: dict[str, Any] = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            query = filled(variable["query"]["query"])
            selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
            offered[variable["name"]] = monitoring.label_values(label, selector, seen.start, seen.gone)
    assert offered["job"] == ["spotwatch"]
    assert offered["instance"] == [LISTENER, TRAINER]
    assert set(offered["provider"]) == {"aws", "digitalocean", "file"}


def test_the_exposition_is_clean(scene: Scene) -> None:
    """`promtool check metrics` finds nothing in what both daemons showed after all that happened."""
    _, seen = scene
    for text in seen.expositions:
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
