# SPDX-License-Identifier: Apache-2.0
"""One answer of `spotwatch check`: how it came out, what was found, and how to mend it.

It asks nothing, and does not know how an answer is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spotwatch.masking import escape

VERSION = 1
ASKED_AS = "asked as"
"""The name of the line about who asks; it is skipped where the daemon is another user's."""
_FOUND_CHARACTERS = 500


class Result(StrEnum):
    """How a question came out."""

    OK = "ok"
    WARN = "warn"
    """It would work, but not as well as it could, or not for certain."""
    FAIL = "fail"
    """A notice would be missed, or a save lost."""
    SKIP = "skip"
    """It does not apply here, or could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the answer."""

    name: str
    """The question, in words that stay the same: `clock`, `signal.aws.instance-action`."""
    result: Result
    found: str
    mend: str = ""
    """What to do about it; empty where nothing is to be done."""

    def __post_init__(self) -> None:
        """Make foreign words harmless: paths, command lines and clouds' answers are shown on a terminal."""
        object.__setattr__(self, "found", escape(self.found, limit=_FOUND_CHARACTERS))
        object.__setattr__(self, "mend", escape(self.mend, limit=_FOUND_CHARACTERS))

    def to_json(self) -> dict[str, str]:
        """Return this line as JSON types."""
        return {"name": self.name, "result": self.result.value, "found": self.found, "mend": self.mend}


def ok(name: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(name=name, result=Result.OK, found=found)


def warn(name: str, found: str, mend: str) -> Finding:
    """Return that it is worth a look."""
    return Finding(name=name, result=Result.WARN, found=found, mend=mend)


def fail(name: str, found: str, mend: str) -> Finding:
    """Return that something would fail."""
    return Finding(name=name, result=Result.FAIL, found=found, mend=mend)


def skip(name: str, found: str, mend: str = "") -> Finding:
    """Return that there is nothing to tell."""
    return Finding(name=name, result=Result.SKIP, found=found, mend=mend)


def has_failed(findings: Sequence[Finding]) -> bool:
    """Tell whether something would fail."""
    return any(finding.result is Result.FAIL for finding in findings)


def is_partial(findings: Sequence[Finding]) -> bool:
    """Tell whether most could not be asked, as the daemon is another user's."""
    return any(finding.name == ASKED_AS and finding.result is Result.SKIP for finding in findings)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as the one document of `--json`."""
    verdict = "unknown" if is_partial(findings) else "ok"
    return {
        "version": VERSION,
        "verdict": "fail" if has_failed(findings) else verdict,
        "checks": [finding.to_json() for finding in findings],
    }
