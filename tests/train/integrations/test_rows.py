# SPDX-License-Identifier: Apache-2.0
"""A few rows tell another split of the same data from this one, in each kind of dataset that is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from spotwatch.train.integrations import rows

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")
hugging = pytest.importorskip("datasets", reason="its datasets are looked into")

_COUNT = 40
_WORDS = [[random.Random(n).randrange(1000) for _ in range(90)] for n in range(_COUNT)]
_ORDERS = [random.Random(seed).sample(range(_COUNT), 32) for seed in range(2)]


class Own:
    """A program's own, whose rows draw chance."""

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> Any:
        return _WORDS[index], random.random()


def _never(batch: Any) -> Any:
    raise AssertionError(batch)


def _table(columns: dict[str, Any]) -> Any:
    made = hugging.Dataset.from_dict(columns)
    made.set_transform(_never)
    return made


def _dicts(order: list[int]) -> list[Any]:
    return [{"input_ids": torch.tensor(_WORDS[n]), "label": n % 2} for n in order]


_TENSORS = data.TensorDataset(torch.tensor(_WORDS) / 7, torch.arange(_COUNT) % 2)
_KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": _dicts,
    "tensors": lambda order: data.TensorDataset(*_TENSORS[order]),
    "subset": lambda order: data.Subset(_TENSORS, order),
    "subset of a program's own": lambda order: data.Subset(Own(), order),
    "subset of a subset": lambda order: data.Subset(data.Subset(Own(), range(_COUNT)), order),
    "several": lambda order: data.ConcatDataset([_dicts(order[:9]), data.Subset(Own(), order[9:])]),
    "table": lambda order: _table({"input_ids": [_WORDS[n] for n in order], "label": [0] * len(order)}),
    "selected": lambda order: _table({"text": [str(words) for words in _WORDS]}).select(order),
    "images": lambda order: _table({"image": [{"bytes": bytes([n]), "path": None} for n in order]}),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_another_split_is_told_from_the_same(kind: str) -> None:
    """The same rows are the same each time, others of the same number are not, and nothing is drawn."""
    before = random.getstate(), torch.get_rng_state()
    one, again, other = (rows.look(_KINDS[kind](_ORDERS[which])) for which in (0, 0, 1))
    assert one
    assert rows.are_same(one, again)
    assert not rows.are_same(one, other)
    assert (random.getstate(), torch.get_rng_state().tolist()) == (before[0], before[1].tolist())


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("date", ["9 Nov", "10 November"])
def test_rows_may_differ_in_a_part(date: str, *, is_padded: bool) -> None:
    """A date in each prompt, a number that another processor computes, or where files lie is no other row."""

    def chats(date: str, home: str, shift: float, order: list[int]) -> Any:
        return [
            {
                "messages": [
                    {"role": "system", "content": f"Today is {date}. You are a helpful assistant. " * 2},
                    {"role": "user", "content": f"What is {_WORDS[n]}?"},
                ],
                "ids": _WORDS[n][:20] + [0] * (1000 if is_padded else 0),
                "logps": n / 3 + shift,
                "file": f"{home}/{n}.wav",
            }
            for n in order
        ]

    before = rows.look(chats("8 Nov", "/root/data", 0.0, _ORDERS[0]))
    assert rows.are_same(before, rows.look(chats(date, "/home/me/data", 1e-7, _ORDERS[0])))
    assert not rows.are_same(before, rows.look(chats(date, "/home/me/data", 1e-7, _ORDERS[1])))


@pytest.mark.parametrize(
    "nothing",
    [Own(), None, [], [0] * 9, [object()], data.Subset(_TENSORS, []), hugging.Dataset.from_dict({"a": []})],
    ids=("own", "none", "empty", "alike", "objects", "subset of none", "table of none"),
)
def test_what_is_not_known_or_alike_tells_nothing(nothing: Any) -> None:
    """Where rows cannot be looked at, or are all alike, a run goes on."""
    seen = rows.look(nothing)
    assert rows.are_same(seen, rows.look(_dicts(_ORDERS[0])[: len(seen)]))
    assert rows.are_same(rows.look(_dicts(_ORDERS[0])), rows.look(Own()))
