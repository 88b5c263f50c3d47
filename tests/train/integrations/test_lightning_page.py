# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/integrations/lightning.md, run as they are printed, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")
pytest.importorskip("torchdata", reason="torchdata is not installed")

from .lightning_lives import ROOT, Run, serving

pytestmark = pytest.mark.timeout(400)


def test_the_blocks_of_the_page(tmp_path: Path) -> None:
    """A run is begun, ends, and is started again; the second block trains a run of its own."""
    page = (ROOT / "docs" / "integrations" / "lightning.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    environ = {"SPOTWATCH_CHECKPOINT_URL": str(tmp_path / "store")}
    with serving() as server:
        run = Run(server, tmp_path / "run", {})
        assert "step 32 is durable" in run.live(0, page=first, environ=environ)
        text = run.live(0, page=first + second, environ=environ)
    assert "run sweep-01 goes on from step 32" in text
    assert "run sweep-02 goes on from step 0 (fresh)" in text
    assert "step 48 is durable" in text
