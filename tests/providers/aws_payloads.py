# SPDX-License-Identifier: Apache-2.0
"""EC2's recorded answers as the bytes that were served; each file says where it is from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "payloads" / "aws"


def load(name: str) -> dict[str, Any]:
    """Return a recorded file without its source."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert next(iter(document)) == "_source"
    del document["_source"]
    return document


def served(name: str) -> bytes:
    """Return the body: the file itself, or what is under its key `body`."""
    document = load(name)
    content = document.get("body", document)
    return content.encode() if isinstance(content, str) else json.dumps(content).encode()
