# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/integrations/peft.md, run as they are printed, one after the other on one run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .peft_help import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")
pytestmark = [
    pytest.mark.timeout(120),  # the libraries import much at their first use
    # What transformers and peft of these versions say of themselves.
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]

PAGE = Path(__file__).parents[3] / "docs" / "integrations" / "peft.md"


def program() -> dict[str, Any]:
    """Return what a program has before the first line of the page."""
    model = peft.get_peft_model(tiny(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
    }


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the blocks of the page; what they save goes into a folder instead of a bucket."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("SPOTWATCH_CHECKPOINT_URL", str(tmp_path / "store"))
    monkeypatch.setenv("SPOTWATCH_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_blocks_of_the_page(blocks: list[str], tmp_path: Path) -> None:
    """A run is begun; its adapter is taken out of the store, peft loads it, and the run is untouched."""
    begin, also, export = blocks
    first = program()
    exec(begin, first)
    assert first["step"] == 0
    with first["ck"]:
        tokens = torch.arange(8)[None]
        first["model"](tokens, labels=tokens).loss.backward()
        first["optimizer"].step()
        assert not first["ck"].step(1)
    assert first["ck"].exit_code == 0
    checkpoints = sorted(path.name for path in (tmp_path / "store" / "lora-01").glob("step-*"))
    assert len(checkpoints) == 1

    later = program()
    exec(export, later)
    assert sorted(path.name for path in (tmp_path / "store" / "lora-01").glob("step-*")) == checkpoints
    loaded = peft.PeftModel.from_pretrained(tiny(), tmp_path / "adapter")
    first["model"].eval()
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, first["model"](tokens).logits)

    again = program()
    exec(begin, again)
    assert again["step"] == 1
    assert again["optimizer"].state_dict()["state"][0]["step"] == 1
    again["ck"].__exit__(None, None, None)

    whole = program() | {"adapters": again["adapters"], "ck": again["Checkpointer"](run_id="whole")}
    exec(also, whole)
    assert whole["ck"].resume() == 0
    with whole["ck"]:
        pass
