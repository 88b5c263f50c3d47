# SPDX-License-Identifier: Apache-2.0
"""The page on batch inference and its example: each block of code is run as it is printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "integrations" / "done-list.md"
_EXAMPLE = _ROOT / "examples" / "batch_inference.py"

pytestmark = pytest.mark.timeout(60)


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime_dir: Path
) -> None:
    """It does the items, leaves with 0, and prints each output."""
    monkeypatch.setenv("SPOTWATCH_CHECKPOINT_URL", str(tmp_path / "outputs"))
    monkeypatch.setenv("SPOTWATCH_RUNTIME_DIR", str(runtime_dir))
    items = [SimpleNamespace(id=f"item-{number}") for number in range(7)]
    scope = {"items": items, "infer": lambda item: item.id.upper()}
    work, read = _blocks()
    with pytest.raises(SystemExit) as left:
        exec(compile(work, str(_PAGE), "exec"), scope)
    assert left.value.code == 0
    exec(compile(read, str(_PAGE), "exec"), scope)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"item-{number} ITEM-{number}" for number in range(7)
    ]


def test_batches_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    """The line on lists of 32 is what it says."""
    assert "`for batch in done.batches(items, size=32, key=...)` and `done.add_many(zip(keys, outputs))`" in (
        _PAGE.read_text(encoding="utf-8")
    )
    monkeypatch.setenv("SPOTWATCH_RUNTIME_DIR", str(runtime_dir))
    scope: dict[str, object] = {"url": str(tmp_path / "outputs"), "items": list(range(70)), "sizes": []}
    code = (
        "from spotwatch.train import DoneList\n"
        "done = DoneList(url, run_id='captions-01', every_items=100)\n"
        "with done:\n"
        "    for batch in done.batches(items, size=32, key=lambda item: item):\n"
        "        keys, outputs = batch, [item * 2 for item in batch]\n"
        "        sizes.append(len(batch))\n"
        "        done.add_many(zip(keys, outputs))\n"
        "found = dict(DoneList.outputs(url, 'captions-01'))\n"
    )
    exec(compile(code, str(_PAGE), "exec"), scope)
    assert scope["sizes"] == [32, 32, 6]
    assert scope["found"] == {item: 2 * item for item in range(70)}


def test_the_example_goes_on_where_it_was_stopped(tmp_path: Path, runtime_dir: Path) -> None:
    """Told to stop, it ends with 75; started again, it does the rest; and it imports no torch."""
    command = [sys.executable, "-X", "importtime", str(_EXAMPLE), "--url", str(tmp_path / "outputs")]
    environ = {"SPOTWATCH_RUNTIME_DIR": str(runtime_dir), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [*command, "--count", "3000"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    status = runtime_dir / "status" / "example.json"
    while not (status.exists() and json.loads(status.read_bytes())["saved"]["step"]):
        assert process.poll() is None
    process.terminate()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    first = int(said.split()[0])
    assert 0 < first < 3000
    again = subprocess.run(
        [*command, "--count", str(first + 10)], env=environ, capture_output=True, text=True, check=True
    )
    assert again.stdout.strip() == f"{first + 10} of {first + 10} done"
    assert "spotwatch.train.done" in again.stderr
    assert not re.search(r"\| +(torch|numpy|boto3)\b", again.stderr)
    read = subprocess.run([*command, "--read"], env=environ, capture_output=True, text=True, check=True)
    assert len({json.loads(line)["id"] for line in read.stdout.splitlines()}) == first + 10
