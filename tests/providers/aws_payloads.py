# SPDX-License-Identifier: Apache-2.0
"""EC2's recorded answers as the bytes that were served, and what a body is expected to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spotwatch.model import Notice
from spotwatch.providers._aws_parse import parse
from spotwatch.testing import EPOCH

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


def raised(signal: str, content: Any) -> Notice:
    """Return the one notice in a body that is wholly good."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    parsed = parse(signal, raw, seen_at=EPOCH)
    assert parsed.problem is None
    (notice,) = parsed.notices
    assert (notice.provider, notice.signal, notice.seen_at) == ("aws", signal, EPOCH)
    return notice


def is_none(signal: str, content: bytes) -> bool:
    """Tell whether a body is wholly good and says that nothing is in force."""
    parsed = parse(signal, content, seen_at=EPOCH)
    return parsed.problem is None and parsed.notices == ()


def is_malformed(signal: str, content: bytes) -> bool:
    """Tell whether a body is refused, kept for inspection, and raises nothing."""
    parsed = parse(signal, content, seen_at=EPOCH)
    return parsed.problem is not None and parsed.problem.body == content and parsed.notices == ()
