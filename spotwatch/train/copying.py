# SPDX-License-Identifier: Apache-2.0
"""Tensors copied to their places in a buffer, as quickly as memory allows; the work of finding them is kept.

A copy waits only for what it copies itself, never for a device between two tensors. It plans no places and
owns no buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spotwatch.train import tensors
from spotwatch.train.tensors import Layout

if TYPE_CHECKING:
    import torch


class Places:
    """The places of one layout in one buffer, as tensors to copy into again and again.

    Args:
        layout: of the file that the buffer will hold.
        buffer: its first bytes; its owner must not unmap it while this lives.
    """

    def __init__(self, layout: Layout, buffer: memoryview) -> None:
        self.layout = layout
        self.buffer = buffer
        self._views = tensors.unpack(buffer, layout)

    def suit(self, named: Mapping[str, torch.Tensor]) -> bool:
        """Tell whether these tensors would lie as the ones do that this was made for."""
        views = self._views
        return len(named) == len(views) and all(
            (view := views.get(name)) is not None
            and view.dtype == tensor.dtype
            and view.shape == tensor.shape
            for name, tensor in named.items()
        )

    def fill(self, named: Mapping[str, torch.Tensor]) -> None:
        """Copy header and tensors, whatever their devices and strides; all is there at return."""
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        self.buffer[: len(self.layout.head)] = self.layout.head
        by_device: dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for name, view in self._views.items():
            source = named[name]
            if not source.numel():
                continue
            views, sources = by_device.setdefault(source.device, ([], []))
            views.append(view)
            sources.append(source)
        with torch.no_grad():
            for device, (views, sources) in by_device.items():
                # Only CUDA keeps the order of its stream, so that one wait at the end is enough.
                torch._foreach_copy_(views, sources, non_blocking=device.type == "cuda")
            for device in by_device:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
