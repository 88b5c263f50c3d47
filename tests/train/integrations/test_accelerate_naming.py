# SPDX-License-Identifier: Apache-2.0
"""Accelerate's own `save_state`, which counts its folders, beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

from accelerate.utils import ProjectConfiguration  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def live(base: Path, environ: dict[str, str], disk: Path, *, steps: int, since: int = 0) -> None:
    """Step and save by both; then save by Accelerate alone, as a life does that is killed soon after."""
    forget()
    settings = ProjectConfiguration(project_dir=str(disk), automatic_checkpoint_naming=True)
    program = Program(base, environ, project_config=settings)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for _ in range(steps):
            run.step()
            program.accelerator.save_state()
        program.ck.save(run.steps)
    for _ in range(since):
        program.accelerator.save_state()


def folders(disk: Path) -> list[str]:
    """Return the names of what Accelerate has saved."""
    return sorted(path.name for path in (disk / "checkpoints").iterdir())


def test_folders_are_counted_on_after_a_resume(tmp_path: Path, environ: dict[str, str]) -> None:
    """On a disk of before, after those that are there; on a new one, after those that were."""
    live(tmp_path, environ, tmp_path / "disk", steps=2, since=1)
    live(tmp_path, environ, tmp_path / "disk", steps=1)
    assert folders(tmp_path / "disk") == [f"checkpoint_{number}" for number in range(4)]
    live(tmp_path, environ, tmp_path / "new", steps=1)
    assert folders(tmp_path / "new") == ["checkpoint_4"]


def test_folders_of_another_run_are_not_counted_on(tmp_path: Path, environ: dict[str, str]) -> None:
    """Accelerate refuses to mix the two, of which its limit would remove the older."""
    live(tmp_path / "one", environ, tmp_path / "disk", steps=1)
    with pytest.raises(ValueError, match="already exists"):
        live(tmp_path / "other", environ, tmp_path / "disk", steps=1)
