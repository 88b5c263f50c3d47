# SPDX-License-Identifier: Apache-2.0
"""Finding the cloud: everybody is asked at once, nobody is waited for longer than two seconds."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest

from spotwatch.detection import detect
from spotwatch.testing import run_virtual


class Candidate:
    """A provider that answers after a while, fails, or hangs."""

    name: ClassVar[str] = "x"

    def __init__(self, answer: object, seconds: float = 0.0) -> None:
        self._answer = answer
        self._seconds = seconds
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    async def detect(self) -> Any:
        """Answer."""
        await asyncio.sleep(self._seconds)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def found(*candidates: Candidate) -> tuple[list[Any], float, list[str]]:
    """Return what was found, how long it took, and what was said."""
    said: list[str] = []

    async def main() -> tuple[list[Any], float]:
        result = await detect(candidates, say=said.append)  # type: ignore[arg-type]
        return list(result), asyncio.get_running_loop().time()

    result, seconds = run_virtual(main())
    assert not any(candidate.is_open for candidate in candidates)
    return result, seconds, said


def test_those_who_are_here() -> None:
    """In the order of the candidates, whoever answers first."""
    slow, no, quick = Candidate(answer=True, seconds=1.5), Candidate(answer=False), Candidate(answer=True)
    result, seconds, said = found(slow, no, quick)
    assert result == [slow, quick]
    assert seconds == pytest.approx(1.5)
    assert said == []


def test_nobody_is_waited_for_longer() -> None:
    """Two seconds for all together, and no word about it: most machines are on no cloud."""
    result, seconds, said = found(*[Candidate(answer=True, seconds=3600)] * 9)
    assert (result, said) == ([], [])
    assert seconds == pytest.approx(2.0)


def test_one_fails() -> None:
    """It is said, and does not hide the cloud of another."""
    here = Candidate(answer=True)
    result, _, said = found(Candidate(RuntimeError("bug")), here)
    assert result == [here]
    assert said == ["x: detection failed: RuntimeError: bug"]
