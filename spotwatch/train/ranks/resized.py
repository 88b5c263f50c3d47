# SPDX-License-Identifier: Apache-2.0
"""What each rank takes of the states of single ranks, also when there are more or fewer ranks now.

Same number: each its own. Else: what was equal everywhere goes everywhere, and chance is drawn anew where it
must be. A loader whose position differs by rank cannot be divided anew, and is refused. Nothing is read here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spotwatch.errors import StoreError
from spotwatch.model import JSON
from spotwatch.train.state import rng

log = logging.getLogger("spotwatch.train")


def source_of(rank: int, saved: int) -> int:
    """Return the saved rank whose own state this rank takes, of so many."""
    return rank % saved


def expect_equal(
    name: str, states: Sequence[JSON], contents: Sequence[Sequence[bytes]], *, insists: bool
) -> None:
    """Refuse to give one rank's state to others when it differed by rank.

    Args:
        name: of the object.
        states: its encoded state on each saved rank.
        contents: the bytes of the tensors that each of them names.
        insists: the user takes what comes.

    Raises:
        StoreError: it differed.
    """
    if all(state == states[0] for state in states) and all(one == contents[0] for one in contents):
        return
    count = len(states)
    if insists:
        log.warning("%s differed on the %d ranks that saved it; each rank takes that of one", name, count)
        return
    raise StoreError(
        f"{name} differed on each of the {count} ranks that saved it (a loader's position, perhaps), so it "
        f"cannot be given to another number of ranks. Resume on {count} ranks; or do not track {name}, and "
        f"derive it from the step; or insist with allow_resize=True or SPOTWATCH_ALLOW_RESIZE=1: rank r then "
        f"takes that of saved rank r modulo {count}, and samples may be seen twice or not at all"
    )


def draw_anew(
    number: int,
    seed_state: JSON,
    generators: Mapping[str, object],
    libraries: Collection[str] = ("python", "numpy", "torch"),
) -> None:
    """Give this rank new chance, made from a saved state and a number: the same each time.

    Args:
        number: another for each that shall draw something else.
        seed_state: what stands for the state that was saved.
        generators: generator objects that are tracked, by name.
        libraries: whose global generators are seeded too, as `rng.capture` names them.
    """
    base = hashlib.sha256(json.dumps([seed_state, number], sort_keys=True).encode()).digest()
    seed = int.from_bytes(base[:4], "little")
    if "python" in libraries:
        random.seed(base)
    numpy: Any = sys.modules.get("numpy")
    if "numpy" in libraries and numpy is not None:
        numpy.random.seed(seed)  # the legacy generator is what `rng` restores
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        if "torch" in libraries:
            torch.manual_seed(seed)
        elif "cuda" in libraries:
            torch.cuda.manual_seed_all(seed)
    for name, thing in generators.items():
        own = hashlib.sha256(base + name.encode()).digest()
        _seed(thing, int.from_bytes(own[:4], "little"))


def is_generator(thing: object) -> bool:
    """Tell whether it is a source of chance, which a rank without a saved one can seed anew."""
    return not hasattr(thing, "load_state_dict") and rng.adapter(thing) is not None


def _seed(thing: Any, seed: int) -> None:
    if isinstance(thing, random.Random):
        thing.seed(seed)
    elif hasattr(thing, "bit_generator"):  # numpy's
        thing.bit_generator.state = type(thing.bit_generator)(seed).state
    else:  # torch's
        thing.manual_seed(seed)
