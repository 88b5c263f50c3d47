# SPDX-License-Identifier: Apache-2.0
"""Values as JSON and back: equal, of equal type, and nothing that could run code."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.state.encoding import decode, encode


def _no_tensor(value: object, path: str) -> str | None:
    return None


def _load_none(name: str) -> object:
    raise KeyError(name)


def _there_and_back(value: Any) -> Any:
    text = json.dumps(encode(value, "x", _no_tensor), allow_nan=False)
    return decode(json.loads(text), _load_none)


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20)
)
_keys = st.text(max_size=5) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.sets(st.integers(), max_size=4)
    ),
    max_leaves=20,
)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return all(map(_same, one, other))
    return not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other)


@given(_values)
def test_any_value_comes_back(value: Any) -> None:
    """Value, type and order survive the way through strict JSON."""
    assert _same(_there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        2**53 + 1,
        -0.0,
        float("inf"),
        {"$tensor": "no"},
        {1: 2, "1": 3},
        "\ud800",
        random.Random(1).getstate(),
        frozenset({1}),
        OrderedDict(a=1, b=2),
        Counter({3: 2}),
    ],
    ids=repr,
)
def test_awkward_values_come_back(value: Any) -> None:
    """What plain JSON would bend comes back straight."""
    assert _same(_there_and_back(value), value)


def test_nan_comes_back() -> None:
    """NaN survives, though strict JSON has none."""
    assert math.isnan(_there_and_back({"loss": math.nan})["loss"])


def test_the_versions_of_torch_modules_come_back() -> None:
    """The attribute that torch hangs on its state dicts is kept."""
    state: Any = OrderedDict(weight=1)
    state._metadata = OrderedDict({"": {"version": 2}})
    assert _there_and_back(state)._metadata == {"": {"version": 2}}


@pytest.mark.parametrize("factory", [None, list, dict, int, float, set, str])
def test_a_default_dict_keeps_its_factory(factory: Callable[[], Any] | None) -> None:
    """A built-in factory is known by its name, and comes back."""
    back = _there_and_back(defaultdict(factory, {"a": 1, 2: "b"}))
    assert _same(back, defaultdict(factory, {"a": 1, 2: "b"}))
    assert back.default_factory is factory


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(10**5000),
        {10**5000: 1},
        {(10**5000,): 1},
        {10**5000, -(10**6000)},
        frozenset({(1, 10**5000)}),
    ],
    ids=["positive", "negative", "key", "key in a tuple", "set", "tuple in a set"],
)
def test_integers_that_python_does_not_print_come_back(value: Any) -> None:
    """Beyond 4300 digits Python refuses decimal text, but the number is as good as any."""
    assert _there_and_back(value) == value


def test_a_decimal_integer_is_read() -> None:
    """As checkpoints of earlier builds hold it."""
    assert decode({"$int": "-9007199254740993"}, _load_none) == -(2**53) - 1


def test_a_set_is_written_in_one_order() -> None:
    """Equal sets have equal bytes, whatever the order of their making."""
    texts = [json.dumps(encode(set(items), "x", _no_tensor)) for items in ((8, 0, "a"), ("a", 0, 8))]
    assert texts[0] == texts[1]


def test_a_torch_shape_comes_back() -> None:
    """It is a tuple by inheritance, and a type of its own."""
    torch = pytest.importorskip("torch")
    back = _there_and_back(torch.Size([2, 3]))
    assert (type(back), back) == (torch.Size, (2, 3))


@pytest.mark.parametrize("dtype", ["?", "<i8", "<u2", "<f2", "<f8", ">f4", "<c16"])
def test_number_arrays_come_back(dtype: str) -> None:
    """Arrays and numpy scalars keep dtype, shape and bytes, and can be written to."""
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = _there_and_back({"a": array, "s": array[1, 1]})
    assert back["a"].dtype == array.dtype
    assert back["a"].tobytes() == array.tobytes()
    assert back["a"].shape == (2, 3)
    assert back["a"].flags.writeable
    assert back["s"] == array[1, 1]
    assert type(back["s"]) is type(array[1, 1])


class _Custom:
    pass


class _Int(int):
    pass


class _Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    "value",
    [
        _Custom(),
        _Int(3),
        lambda: 1,
        np.array([object()]),
        np.array(["a"]),
        np.eye(1).view(np.matrix),
        3 + 4j,
        range(3),
        slice(1),
        defaultdict(lambda: 0),
        _Point(1),
    ],
    ids=lambda v: type(v).__name__,
)
def test_everything_else_is_refused_by_its_path(value: Any) -> None:
    """What has no safe form is refused, and the message says where it is."""
    with pytest.raises(ConfigError, match=r"optimizer/state/0/what"):
        encode({"state": {0: {"what": value}}}, "optimizer", _no_tensor)


def test_the_refusal_names_the_plain_type() -> None:
    """What to do is said in words that a user would write."""
    with pytest.raises(ConfigError, match=r"turn it into a plain tuple$"):
        encode(_Point(1), "x", _no_tensor)
    with pytest.raises(ConfigError, match=r"whose factory is .*<lambda>; turn it into a plain dict"):
        encode(defaultdict(lambda: 0), "x", _no_tensor)


def test_a_value_that_contains_itself_is_refused() -> None:
    """A loop is refused instead of followed."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match="contains itself"):
        encode(loop, "x", _no_tensor)


@pytest.mark.parametrize(
    "hostile",
    [
        {"$object": "os.system"},
        {"$array": ["|O", [1], "AAAA"]},
        {"$array": ["<f8", [10**9], "AAAA"]},
        {"$array": ["<f8", [1], "not base64"]},
        {"$float": "__import__('os')"},
        {"$int": "1e3"},
        {"$int": 1e400},
        {"$int": "9" * 5000},
        {"$default": ["eval", []]},
        {"$default": [["list"], []]},
        {"$default": [None, 5]},
        {"$size": ["a"]},
        {"$array": ["<f8", [10**30], "AAAA"]},
        {"$dict": [[["list"], 1]]},
        {"$dict": 5},
        {"$tensor": "missing"},
        {"$tuple": []} | {"more": 1},
        {"$set": [[1]]},
    ],
    ids=repr,
)
def test_hostile_state_is_corrupt(hostile: Any) -> None:
    """What we do not write ourselves is refused as corrupt, and builds nothing."""
    with pytest.raises(CheckpointCorrupt):
        decode(hostile, _load_none)
