# SPDX-License-Identifier: Apache-2.0
"""The digest of weights: equal for equal bits, different for any difference."""

import pytest

from spotwatch.train import digest

torch = pytest.importorskip("torch")


def test_it_sees_every_difference() -> None:
    """Name, dtype, shape, one bit and the sign of zero each change it; order of insertion does not."""
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    others = [
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(1)},
        {"a": -torch.zeros(2, 3), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.nextafter(torch.ones(1), torch.zeros(1))},
    ]
    assert len({digest(base), *map(digest, others)}) == 6
    assert digest({"b": torch.ones(1), "a": torch.zeros(3, 2).t()}) == digest(base)


def test_a_module_and_its_state_agree() -> None:
    """A module stands for its state dict."""
    module = torch.nn.Linear(2, 2)
    assert digest(module) == digest(module.state_dict())
