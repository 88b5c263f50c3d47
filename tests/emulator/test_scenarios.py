# SPDX-License-Identifier: Apache-2.0
"""Every story on virtual time: what it announces, takes back and breaks, and when.

Nobody asks for a page here; that is tested page by page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spotwatch.emulator import SCENARIOS, Emulator, check_scenario, clouds, play, scenarios_of
from spotwatch.errors import ConfigError
from spotwatch.model import Event
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from tests.emulator.client import until
from tests.emulator.test_digitalocean import SECRET, webhook

ASKED = ("aws", "gcp", "azure")
Row = tuple[float, str, str]


def told(name: str, scenario: str) -> list[Row]:
    """Play with 40 s before and 100 s of window; return second, event, and what it was about."""
    heard: list[Event] = []

    async def main() -> None:
        async with Emulator(name, clock=FakeClock(), listener=heard.append) as cloud:
            await play(cloud, scenario, notice_after_seconds=40, window_seconds=100)

    run_virtual(main())
    return [(round((e.at - EPOCH).total_seconds(), 3), e.name, about(e.data)) for e in heard]


def about(data: Mapping[str, Any]) -> str:
    """Return signal or fault, with the details that matter."""
    words = [str(data.get("fault") or data.get("signal"))]
    words += [str(data[k]) for k in ("action", "code", "value", "resources") if k in data]
    return " ".join(words)


MAIN = {"aws": "instance-action", "gcp": "preempted", "azure": "Preempt"}


@pytest.mark.parametrize("name", ASKED)
def test_plain_and_withdrawn(name: str) -> None:
    """One notice after the lead; the other story takes it back halfway."""
    assert told(name, "plain") == [(40, "announced", MAIN[name])]
    assert told(name, "withdrawn") == [(40, "announced", MAIN[name]), (90, "withdrawn", "all")]


@pytest.mark.parametrize(("name", "advice"), [("aws", "rebalance"), ("azure", "SpotRebalanceRecommendation")])
def test_rebalance_then_interrupt(name: str, advice: str) -> None:
    """The advice comes at half of the lead."""
    rows = told(name, "rebalance-then-interrupt")
    assert rows == [(20, "announced", advice), (40, "announced", MAIN[name])]


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("fault", ["sliding-time", "past-time"])
def test_wrong_times(name: str, fault: str) -> None:
    """The fault is there before the notice."""
    assert told(name, fault) == [(0, "fault", fault), (40, "announced", MAIN[name])]


@pytest.mark.parametrize("name", ASKED)
def test_outage_then_notice(name: str) -> None:
    """Four failures fill the lead, each healed by its name; the notice comes with the last one's end."""
    rows = told(name, "outage-then-notice")
    assert [r for r in rows if r[1] == "fault"] == [
        (0, "fault", "hang"),
        (10, "fault", "refuse"),
        (20, "fault", "503"),
        (30, "fault", "reset"),
    ]
    assert [r[0] for r in rows if r[1] == "healed"] == [10, 20, 30, 40]
    assert rows[-1] == (40, "announced", MAIN[name])


def test_stories_of_aws() -> None:
    """A changed action, hibernation, and tokens that end at the worst moments."""
    assert told("aws", "stop-becomes-terminate") == [
        (40, "announced", "instance-action stop"),
        (65, "announced", "instance-action terminate"),
    ]
    assert told("aws", "hibernate") == [
        (40, "announced", "instance-action hibernate"),
        (140, "withdrawn", "all"),
    ]
    assert told("aws", "token-expiry") == [
        (36, "fault", "401"),
        (40, "announced", "instance-action"),
        (65, "fault", "401"),
    ]


@pytest.mark.parametrize("name", ASKED)
def test_flicker_and_never_comes(name: str) -> None:
    """Eight flickering answers; a notice whose time passes, which Google alone has to take back."""
    signal = MAIN[name]
    assert told(name, "flicker") == [(40, "fault", "flicker"), (40, "announced", signal)]
    back = [(140, "withdrawn", "all")] if name == "gcp" else []
    assert told(name, "never-comes") == [(40, "announced", signal), *back]


def test_neighbour() -> None:
    """The other's notice comes first."""
    assert told("azure", "neighbour") == [
        (20, "announced", "Preempt ['spot-vmss_7']"),
        (40, "announced", "Preempt"),
    ]


@pytest.mark.parametrize(
    ("name", "ends", "lives"),
    [
        ("aws", ["scheduled-events instance-retirement"], ["scheduled-events system-maintenance"]),
        (
            "gcp",
            ["upcoming-maintenance", "maintenance-event"],
            ["maintenance-event MIGRATE_ON_HOST_MAINTENANCE"],
        ),
        ("azure", ["Redeploy"], ["Freeze"]),
    ],
)
def test_maintenance(name: str, ends: list[str], lives: list[str]) -> None:
    """Maintenance that ends the machine, and maintenance that does not and is over."""
    assert [r[2] for r in told(name, "scheduled-maintenance")] == ends
    rows = told(name, "live-migration")
    assert [r[2] for r in rows] == [*lives, "all"]
    assert rows[-1][:2] == (140, "withdrawn")


@pytest.mark.parametrize(
    ("scenario", "events"),
    [
        ("plain", ["reclaim"]),
        ("withdrawn", ["reclaim", "cancel"]),
        ("sliding-time", ["reclaim"] * 4),
        ("neighbour", ["reclaim", "reclaim"]),
    ],
)
async def test_stories_are_pushed_on_digitalocean(scenario: str, events: list[str]) -> None:
    """The same stories arrive as messages."""
    async with (
        webhook() as hook,
        Emulator("digitalocean", webhook_url=hook.url, secret=SECRET) as cloud,
    ):
        await play(cloud, scenario, notice_after_seconds=0.1, window_seconds=0.4)
        await until(lambda: len(hook.got) == len(events))
    assert [m["event"] for m in hook.messages] == events
    own = [m["droplet_id"] == 512345678 for m in hook.messages]
    assert own == [scenario != "neighbour", True, True, True][: len(own)]


def test_every_scenario_is_described_and_played_somewhere() -> None:
    """Each name has one line, and each cloud has several."""
    assert all(text and "\n" not in text for text in SCENARIOS.values())
    assert {n for c in clouds() for n in scenarios_of(c)} == set(SCENARIOS)
    assert all("plain" in scenarios_of(c) for c in clouds())


def test_impossible_scenarios_are_refused() -> None:
    """A mistake says what there is."""
    with pytest.raises(ConfigError, match="unknown scenario 'x'; have plain"):
        check_scenario("x", "aws")
    with pytest.raises(ConfigError, match="'hibernate' is for aws; gcp has plain"):
        check_scenario("hibernate", "gcp")
