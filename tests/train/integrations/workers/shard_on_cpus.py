# SPDX-License-Identifier: Apache-2.0
"""FSDP2 through Accelerate on CPUs. It asks for it on accelerators only, and takes DDP here without a word.

Nothing but that question is passed over: sharding, gradients and clipping are Accelerate's own and torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor


def shard_on_cpus() -> None:
    """Let each later Accelerator with an FSDP plugin shard, when there are several processes."""
    initialize = AcceleratorState.__init__

    def initialize_and_shard(state: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialize(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and state.distributed_type is DistributedType.MULTI_CPU:
            state.fsdp_plugin = fsdp_plugin
            state.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = initialize_and_shard


def is_sharded(model: torch.nn.Module) -> bool:
    """Tell whether all parameters are spread over the processes."""
    return all(isinstance(parameter, DTensor) for parameter in model.parameters())
