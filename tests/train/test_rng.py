# SPDX-License-Identifier: Apache-2.0
"""Random state of every source: through JSON and back, and what is refused or only warned of."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from spotwatch.errors import CheckpointCorrupt
from spotwatch.train.state import encoding, rng
from spotwatch.train.state.found import Found

torch = pytest.importorskip("torch")


def _through_json(value: object) -> Any:
    found = Found()
    text = json.dumps(encoding.encode(value, "rng", found.save), allow_nan=False)
    return encoding.decode(json.loads(text), lambda name: found.by_name[name].clone())


def _draw() -> list[float]:
    # The legacy generator of numpy keeps the second of each pair of normal numbers back.
    return [random.gauss(), np.random.normal(), float(torch.randn(())), random.random(), np.random.rand()]  # noqa: NPY002 - what trainers use


def test_global_generators_go_on() -> None:
    """Python, numpy and torch draw again what they drew after the capture, kept-back numbers included."""
    _draw()
    state = _through_json(rng.capture())
    wanted = [_draw() for _ in range(3)]
    rng.restore(state)
    assert [_draw() for _ in range(3)] == wanted


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: random.Random(3), lambda source: source.random()),
        (lambda: np.random.default_rng(3), lambda source: source.integers(2**40)),
        (lambda: np.random.Generator(np.random.Philox(3)), lambda source: source.normal()),
        (lambda: np.random.Generator(np.random.MT19937(3)), lambda source: source.normal()),
        (lambda: torch.Generator().manual_seed(3), lambda source: torch.rand((), generator=source).item()),
    ],
    ids=["Random", "PCG64", "Philox", "MT19937", "torch"],
)
def test_a_generator_of_the_trainers_own_goes_on(make: Any, draw: Any) -> None:
    """Each kind of generator object can be tracked by name."""
    first, second = make(), make()
    draw(first)
    pair, other = rng.adapter(first), rng.adapter(second)
    assert pair is not None
    assert other is not None
    other[1](_through_json(pair[0]()))
    assert [draw(second) for _ in range(4)] == [draw(first) for _ in range(4)]


def test_something_else_is_no_generator() -> None:
    """What can be neither read nor set is not taken for a source of chance."""
    assert rng.adapter(object()) is None


@pytest.mark.parametrize(
    "broken",
    [{}, {"python": 1}, {"torch": "x"}, {"numpy": {"bit_generator": "none"}}],
    ids=["empty", "python", "torch", "numpy"],
)
def test_a_state_that_is_none_is_corrupt(broken: dict[str, Any]) -> None:
    """A value that no generator takes means that the checkpoint cannot be used."""
    state = {**rng.capture(), **broken} if broken else {}
    with pytest.raises(CheckpointCorrupt, match="random generator is refused"):
        rng.restore(state)


def test_fewer_accelerators_than_saved_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on, and whoever compares bits is told why they differ."""
    state = {**rng.capture(), "cuda": [torch.get_rng_state()] * (torch.cuda.device_count() + 1)}
    rng.restore(state)
    assert "not bit-identical" in caplog.text


def test_each_accelerator_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA in use the state of every device is saved and put back in order."""
    states = [torch.tensor([n], dtype=torch.uint8) for n in range(2)]
    put: dict[int, int] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: put.update({device: int(state)}))
    rng.restore(_through_json(rng.capture()))
    assert put == {0: 0, 1: 1}
