# SPDX-License-Identifier: Apache-2.0
"""A body that is made from the tensors while it is sent: for states that do not fit into memory twice.

Nothing is copied ahead, so the tensors must not change until the last part has been taken. It sends nothing.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from spotwatch.errors import NoRoom
from spotwatch.train.parts import part_bytes_for
from spotwatch.train.state import tensors
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.tensors import Layout, Place

if TYPE_CHECKING:
    import torch

log = logging.getLogger("spotwatch.train")


class Streaming:
    """What a save does when there is no room for a copy; it says so once.

    Args:
        staging: the buffer that had no room.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._has_warned = False

    def body(self, layout: Layout, named: Mapping[str, torch.Tensor], reason: NoRoom) -> Streamed:
        """Return a body that needs room for its parts only.

        Args:
            layout: of the file.
            named: its tensors.
            reason: why there is no copy.

        Raises:
            NoRoom: there is not even room for one part.
        """
        body = Streamed(layout, named)
        if body.part_bytes > self._staging.available_bytes:
            raise NoRoom(f"{reason}: not even for a part of {body.part_bytes} bytes") from reason
        if not self._has_warned:
            log.warning(
                "%s: each save is sent in parts straight from the tensors, and training waits until it is "
                "durable; a machine with more memory, or a limit that is higher, would end that",
                reason,
            )
            self._has_warned = True
        return body


class Streamed:
    """The file of one layout, part after part.

    Memory: each part that the caller holds, one that is being made, and of a tensor that does not lie in row
    order a whole copy while its parts are made.

    Args:
        layout: of the file.
        named: its tensors.
    """

    fd = None

    def __init__(self, layout: Layout, named: Mapping[str, torch.Tensor]) -> None:
        self.size_bytes = layout.size_bytes
        self.part_bytes = part_bytes_for(layout.size_bytes)
        self._layout = layout
        self._named = named

    def parts(self) -> Iterator[memoryview]:
        """Yield the parts in order, each in memory of its own."""
        places = iter([place for place in self._layout.places if place.end > place.begin])
        place = next(places, None)
        rows: torch.Tensor | None = None
        for begin in range(0, self.size_bytes, self.part_bytes):
            length = min(self.part_bytes, self.size_bytes - begin)
            # Not a bytearray: the allocator would keep the memory after the part is gone.
            part = memoryview(mmap.mmap(-1, length))
            head = self._layout.head[begin : begin + length]
            part[: len(head)] = head
            while place is not None and place.begin < begin + length:
                if rows is None:
                    rows = _in_row_order(self._named[place.name])
                _copy(rows, place, part, begin)
                if place.end > begin + length:
                    break
                rows = None
                place = next(places, None)
            yield part


def _in_row_order(tensor: torch.Tensor) -> torch.Tensor:
    # Values, not bits: a conjugate is a flag on bits that are another's.
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1)


def _copy(rows: torch.Tensor, place: Place, part: memoryview, part_begin: int) -> None:
    """Copy what of the tensor at `place` lies in the part."""
    begin, end = max(place.begin, part_begin), min(place.end, part_begin + len(part))
    # Parts and places begin at multiples of the element's size, so that no element is cut in two.
    size = rows.element_size()
    first, count = (begin - place.begin) // size, (end - begin) // size
    target = Place(place.name, place.dtype, (count,), begin - part_begin, end - part_begin)
    tensors.view(part, target).copy_(rows[first : first + count])
