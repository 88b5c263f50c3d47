# SPDX-License-Identifier: Apache-2.0
"""The number of the next folder that Accelerate's own `save_state` makes, if it names them itself.

Those folders are the program's: they are neither read nor removed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

_NAME = "checkpoint_"


def number_on(accelerator: Any, *, is_resumed: bool) -> None:
    """Let a resumed run count on after the folders that are there, for `save_state` refuses to overwrite one.

    A life that was killed may have made some since its last save. All processes call it together. In a fresh
    run a folder that is there is another run's, and stays refused.
    """
    settings = accelerator.project_configuration
    if not (is_resumed and settings.automatic_checkpoint_naming and settings.project_dir):
        return
    folder = Path(settings.project_dir) / "checkpoints"
    found = [path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*")]
    next_one = max((int(number) + 1 for number in found if number.isdecimal()), default=0)
    # A disk of its own may show a process other folders, but they share one number.
    settings.iteration = max(settings.iteration, *gather_object([next_one]))
