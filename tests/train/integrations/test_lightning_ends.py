# SPDX-License-Identifier: Apache-2.0
"""What a Lightning run leaves at an end, for what comes after: another life, more steps, another training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")
pytest.importorskip("pytorch_lightning", reason="Lightning's other package is not installed")
pytest.importorskip("torchdata", reason="torchdata is not installed")

from .lightning_lives import World, serving
from .lightning_rows import told

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a server of lives."""
    with serving() as server:
        yield World(server, tmp_path_factory.mktemp("lightning-ends"))


def test_the_best_models_of_a_folder_that_is_another_in_each_life_are_not_forgotten(world: World) -> None:
    """So it is where ModelCheckpoint is given no dirpath; what comes next is compared with them."""
    whole, run = world.run({"saves": "own"}), world.run({"saves": "own"})
    whole.live(0)
    run.live(75, **told("step", 14))
    text = run.live(0)
    assert "dirpath has changed" not in text
    assert "is not here" not in text
    (expected,) = [row for row in whole.quiet() if "last" in row]
    assert [row for row in run.quiet() if "last" in row][-1] == expected


