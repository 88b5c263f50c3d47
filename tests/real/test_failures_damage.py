# SPDX-License-Identifier: Apache-2.0
"""A run whose checkpoints were damaged in the bucket goes on from the newest that verifies, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import LOST_STEPS, Runs

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_OLDER, _NEWER = LOST_STEPS


@dataclass(frozen=True)
class Damage:
    """What is done to a run, and what must come of it."""

    name: str
    do: Callable[[Place], None]
    resumed: int
    says: str
    """In the log; "" where there is nothing to say."""
    is_marked: bool = False
    """Whether the newer checkpoint is put into quarantine."""


def _tensors(place: Place, step: int = _NEWER) -> str:
    return f"{place.dir_of(step)}/rank-00000.safetensors"


def _manifest(place: Place, step: int = _NEWER) -> str:
    return f"{place.dir_of(step)}/manifest.json"


def _flip(at: float) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        damaged = bytearray(body)
        damaged[int((len(body) - 1) * at)] ^= 4
        return bytes(damaged)

    return change


def _dangle(body: bytes) -> bytes:
    return json.dumps(json.loads(body) | {"dir": "step-000000008-g1-00000000"}).encode()


_DAMAGES = (
    Damage("none", lambda place: None, _NEWER, ""),
    Damage("first bit", lambda place: place.change(_tensors(place), _flip(0.0)), _OLDER, "checksum", True),
    Damage("some bit", lambda place: place.change(_tensors(place), _flip(0.6)), _OLDER, "checksum", True),
    Damage("last bit", lambda place: place.change(_tensors(place), _flip(1.0)), _OLDER, "checksum", True),
    Damage(
        "truncated",
        lambda place: place.change(_tensors(place), lambda body: body[: len(body) // 2]),
        *(_OLDER, "its manifest says", True),
    ),
    Damage("empty", lambda place: place.put(_tensors(place), b""), _OLDER, "has 0 bytes", True),
    Damage(
        "longer",
        lambda place: place.change(_tensors(place), lambda body: body + b"\0"),
        *(_OLDER, "its manifest says", True),
    ),
    Damage("missing shard", lambda place: place.delete(_tensors(place)), _OLDER, "is missing", True),
    Damage("missing LATEST", lambda place: place.delete("LATEST"), _NEWER, ""),
    Damage("dangling LATEST", lambda place: place.change("LATEST", _dangle), _NEWER, "g1-00000000"),
    Damage("garbage in LATEST", lambda place: place.put("LATEST", b"\0\xff{" * 99), _NEWER, "LATEST"),
    Damage("empty LATEST", lambda place: place.put("LATEST", b""), _NEWER, "LATEST"),
    Damage(
        "torn manifest",
        lambda place: place.change(_manifest(place), lambda body: body[:-20]),
        *(_OLDER, "manifest", True),
    ),
    Damage("bit in the manifest", lambda place: place.change(_manifest(place), _flip(0.5)), _OLDER, "", True),
    Damage("no manifest", lambda place: place.delete(_manifest(place)), _OLDER, "manifest", True),
)


# The rest of them differs in what was written there, not in how a server answers.
_EVERYWHERE = {
    *("some bit", "truncated", "longer", "missing shard", "missing LATEST", "dangling LATEST"),
    *("garbage in LATEST", "torn manifest"),
}


@pytest.mark.parametrize(
    ("any_place", "damage"),
    [
        pytest.param(server, damage, id=f"{server}-{damage.name.replace(' ', '-')}")
        for server in ("weed", "rclone", "moto")
        for damage in _DAMAGES
        if server == "weed" or damage.name in _EVERYWHERE
    ],
    indirect=["any_place"],
)
def test_damaged(lost: Place, runs: Runs, damage: Damage) -> None:
    """The newest checkpoint that verifies is taken, and the run ends as if it had never been interrupted."""
    newer = lost.dir_of(_NEWER)
    damage.do(lost)
    trainer = runs.at(lost)
    runs.expect(trainer, resumed=damage.resumed)
    assert damage.says in trainer.text
    assert ("passed over" in trainer.text) == bool(damage.says or damage.is_marked), trainer.text
    # With three to keep, it is still there to be looked at.
    assert (f"{newer}/quarantine.json" in lost.names()) == damage.is_marked
    assert lost.latest_step() == 12


def test_all_damaged(lost: Place, runs: Runs) -> None:
    """A start is refused and changes no checkpoint; insisted on, it begins at 0 and is the run's new life."""
    for step in (_OLDER, _NEWER):
        lost.change(_tensors(lost, step), _flip(0.6))
    before = {key: body for key, body in lost.content().items() if key.startswith("step-")}
    refused = runs.at(lost)
    assert refused.end() == 1, refused.text
    assert "holds checkpoints, but none can be used" in refused.text
    assert "SPOTWATCH_ALLOW_FRESH=1" in refused.text
    assert "rank 0: resumed" not in refused.text
    after = lost.content()
    assert {key: after.get(key) for key in before} == before
    runs.expect(runs.at(lost, SPOTWATCH_ALLOW_FRESH="1"), resumed=0)
    assert lost.latest_step() == 12
