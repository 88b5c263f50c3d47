# SPDX-License-Identifier: Apache-2.0
"""Random state that is noted without asking, wherever it has not moved: never an old one for a new one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from spotwatch.train.integrations import chance
from spotwatch.train.integrations.chance import Notes

np = pytest.importorskip("numpy", reason="comes with every trainer")
torch = pytest.importorskip("torch")

_DRAWS: tuple[Callable[[], object], ...] = (
    random.random,
    lambda: random.gauss(0, 1),
    lambda: random.seed(3),
    lambda: random.getrandbits(32),
    np.random.rand,
    np.random.standard_normal,
    lambda: np.random.seed(3),
    # All words are others then, and the place in them the same.
    lambda: random.getrandbits(624 * 32),
    lambda: np.random.bytes(624 * 4),
    lambda: torch.rand(2),
    lambda: torch.manual_seed(3),
    lambda: None,
)


@pytest.fixture(autouse=True)
def _chance_comes_back() -> Iterator[None]:
    """Leave the generators as they were."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(pytorch)


def _numbers() -> list[float]:
    """Draw from all, in a way that shows a normal number which was kept too."""
    drawn = [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.rand()]
    return [*map(float, drawn), *torch.rand(2).tolist()]


@pytest.mark.parametrize("has_words", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_put_back_draws_the_same(monkeypatch: pytest.MonkeyPatch, seed: int, has_words: bool) -> None:
    """After any draws between notes, also of normal numbers, and on an interpreter laid out otherwise."""
    if not has_words:
        monkeypatch.setattr(chance, "_is_python_as_expected", lambda: False)
        monkeypatch.setattr(chance, "_find_kept_normal", lambda _: None)
    plan, notes = random.Random(seed), Notes()
    for _ in range(60):
        for _ in range(plan.randrange(3)):
            plan.choice(_DRAWS)()
        noted = notes.take()
        expected = _numbers()
        notes.put(noted)
        assert _numbers() == expected
        notes.put(noted)


def test_what_has_not_moved_is_not_asked_for() -> None:
    """The same objects are given again: that is what makes it quick."""
    random.seed(1)
    np.random.seed(1)
    notes = Notes()
    notes.take()
    assert (notes._sees_python, notes._normal_at is not None) == (True, True)
    first, second = notes.take(), notes.take()
    assert first["python"] is second["python"]
    assert first["numpy"] is second["numpy"]
    random.random()
    np.random.rand()
    third = notes.take()
    assert third["python"] is not second["python"]
    assert third["numpy"] is not second["numpy"]
