# SPDX-License-Identifier: Apache-2.0
"""What a run would lose without a word is said as it begins, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("only_accelerator")]


def test_what_a_hook_saves_besides_models_is_said_to_be_lost(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Examples save averaged weights so, which would begin anew."""
    program = Program(tmp_path, environ)
    program.accelerator.register_save_state_pre_hook(lambda *_: None)
    with SpotwatchRun(program.ck, program.accelerator):
        pass
    assert "but nothing else that they write" in caplog.text
    assert "register_for_checkpointing" in caplog.text
