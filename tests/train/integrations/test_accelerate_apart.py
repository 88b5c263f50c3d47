# SPDX-License-Identifier: Apache-2.0
"""What each process has for itself, and a save has not: it is refused, or said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch.distributed as dist  # noqa: E402 - after the skip
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402 - after the skip
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402 - after the skip

from spotwatch.errors import ConfigError  # noqa: E402 - after the skip
from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Let the test's process be a group of one, as DistributedDataParallel needs."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Replicated(Program):
    """A program whose model is replicated, as with several processes."""

    def __init__(self, base: Path, environ: dict[str, str]) -> None:
        super().__init__(base, environ)
        self.replica = DistributedDataParallel(self.model)
        self.run = SpotwatchRun(self.ck, self.accelerator)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("hook", [powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook])
def test_a_hook_that_carries_errors_over_is_refused_at_the_start(
    tmp_path: Path, environ: dict[str, str], hook: Any
) -> None:
    """Each process would begin anew what it has of the gradients."""
    program = Replicated(tmp_path, environ)
    program.replica.register_comm_hook(powerSGD_hook.PowerSGDState(None), hook)
    with pytest.raises(ConfigError, match=rf"{hook.__name__}.*BF16"), program.run:
        pass


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("state", [None, SimpleNamespace()], ids=["none", "own"])
def test_another_hook_may_be_and_is_said_if_it_has_a_state(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture, state: Any
) -> None:
    """Compression to half precision has none; of a program's own nothing is known."""
    program = Replicated(tmp_path, environ)
    program.replica.register_comm_hook(state, default_hooks.fp16_compress_hook)
    with program.run as run:
        assert not run.step()
    assert ("fp16_compress_hook has a state" in caplog.text) == (state is not None)


@pytest.mark.usefixtures("group")
def test_weights_that_processes_do_not_average_are_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """So LocalSGD trains, in which a step of one process is none of another's."""
    program = Replicated(tmp_path, environ)
    with program.run as run:
        assert not run.step()
        with program.replica.no_sync(), pytest.raises(ConfigError, match="LocalSGD"):
            run.step()
