# SPDX-License-Identifier: Apache-2.0
"""How a test runs one of the scripts beside it as several ranks, and reads what each of them wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.train.rendezvous import rendezvous

WORKERS = Path(__file__).parent / "workers"
LAUNCH_SECONDS = 400
"""More than any of them takes, also beside other work on a slow machine."""


def ranks(count: int, script: str, out: Path, *arguments: object, **environ: str) -> list[dict[str, Any]]:
    """Run `script OUT ARGUMENT...` as so many ranks, and return what each wrote to OUT.RANK.

    Args:
        count: how many ranks; one that is `plain` runs without a launcher.
        script: below `workers`.
        out: a path that none has used.
        arguments: for the script, after OUT.
        environ: more variables.
    """
    launcher = [WORKERS / "launch.py", count] if count > 1 or "plain" not in arguments else []
    command = [sys.executable, *launcher, WORKERS / script, out, *arguments]
    run = subprocess.run(
        [str(part) for part in command],
        env=clean_environ() | rendezvous() | environ,
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in range(count)]


def clean_environ() -> dict[str, str]:
    """Return the environment without what a launcher or a daemon has put there; one thread a rank."""
    foreign = ("SPOTWATCH_", "TORCHELASTIC")
    ours = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        ours.pop(name, None)
    return ours | {"OMP_NUM_THREADS": "1"}
