# SPDX-License-Identifier: Apache-2.0
"""Calls into torch.distributed.checkpoint: by one process alone, or by all ranks; with our errors.

What is planned, written and read is in `dcp_writer` and `dcp_reader`. Import it only where torch is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from spotwatch.errors import ConfigError, SpotwatchError, StoreError
from spotwatch.train.ranks.dcp_reader import LoadPlanner, Reader
from spotwatch.train.ranks.dcp_writer import Planner, Writer


def plan_save(
    flat: Mapping[str, torch.Tensor], writer: Writer, planner: Planner, group: ProcessGroup | None
) -> None:
    """Let torch plan a save; all ranks of `group` together.

    Args:
        flat: tensors and DTensors by name.
        writer: takes the plan down.
        planner: leaves out what other ranks write.
        group: None: this process alone.

    Raises:
        ConfigError: something cannot be saved, on some rank.
        StoreError: a rank has gone.
    """
    with _our_errors(alone=group is None):
        dcp_save(
            dict(flat), storage_writer=writer, planner=planner, process_group=group, no_dist=group is None
        )


def load(flat: dict[str, Any], reader: Reader, group: ProcessGroup | None) -> None:
    """Fill tensors and DTensors from a checkpoint; all ranks of `group` together. Nothing is unpickled.

    Raises:
        Exception: what the fetching of `reader` raised; then no tensor was touched, on any rank.
        StoreError: a rank has gone, or the tensors do not fit.
    """
    with _our_errors(alone=group is None):
        dcp_load(
            flat,
            storage_reader=reader,
            planner=LoadPlanner(),
            process_group=group,
            no_dist=group is None,
        )
    if reader.failure is not None:
        raise reader.failure


@contextmanager
def _our_errors(*, alone: bool) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            if alone:  # torch warns that there is no process group; here that is meant
                warnings.filterwarnings("ignore", message=".*torch.distributed is (disabled|unavailable)")
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, ConfigError):
            raise ConfigError(f"rank {rank}: {cause}") from error
        if isinstance(cause, SpotwatchError):
            raise type(cause)(f"rank {rank}: {cause}") from error
        if not isinstance(cause, Exception):
            raise cause from error  # an interrupt stays one
        if "Failed to validate global plan" in str(cause):
            raise ConfigError(
                f"the parts of a tensor overlap or leave something out (strided or uneven sharding): {cause}"
            ) from error
        raise StoreError(f"rank {rank}: torch.distributed.checkpoint failed: {cause!r}") from error
    except RuntimeError as error:
        raise StoreError(f"torch.distributed.checkpoint failed, or a rank has gone: {error}") from error
