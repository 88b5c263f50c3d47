# SPDX-License-Identifier: Apache-2.0
"""Every exception that spotwatch raises on purpose, and what the caller can do about it.

```
SpotwatchError
├─ ConfigError            the user must change something; exit status 2
├─ ProviderError          a cloud's answer, or its absence; says nothing about the world
│  ├─ Unavailable         no answer in time, 5xx, refused, throttled: ask again
│  ├─ Denied              401/403, token refused: ask again, tell the user
│  ├─ Malformed           answered, but not as documented: keep the body, ask again
│  └─ NotHere             this machine is not on that cloud
├─ ActionError            a trainer could not be told: try again, the next action goes on
├─ HandshakeError         a file between daemon and trainer is refused: hostile, half-written or foreign
└─ StoreError             the checkpoint store refused; the pointer is unmoved
   ├─ StoreMissing        there is no object of that name
   ├─ StoreConflict       an object is not the version that was expected
   ├─ StoreSilent         the store does not answer, and was waited for as long as there was patience
   ├─ NoRoom              there is no memory for a copy of the state
   ├─ CheckpointCorrupt   an object is not what its manifest says
   ├─ RankGone            another rank of this run has gone: nothing can be agreed on any more
   └─ RunTaken            another process has gone on with the run: stop writing
```

It does not know who raises what. Standard library only.
"""

from __future__ import annotations

from typing import ClassVar


class SpotwatchError(Exception):
    """The root of everything that is raised on purpose."""


class ConfigError(SpotwatchError):
    """Something the user must change; all problems at once, one a line.

    Args:
        problems: each names the key or file, the value found, and what is wanted.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ProviderError(SpotwatchError):
    """A poll of one signal failed.

    Args:
        message: what failed, with which value.
        mend: what the user can do about it, when that is known; may be empty.
    """

    result: ClassVar[str] = "unexpected"
    """The value of the metric label `result`."""

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.mend = mend


class Unavailable(ProviderError):
    """No answer in time, connection refused, 5xx or throttled; the next poll may succeed.

    Args:
        message: what failed.
        mend: what the user can do about it.
        retry_after_seconds: the server's own wish (429 or 503 with Retry-After); None without one.
    """

    result = "unavailable"

    def __init__(self, message: str, *, mend: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message, mend=mend)
        self.retry_after_seconds = retry_after_seconds


class Denied(ProviderError):
    """The source refused us: 401, 403, or a token that it will not take."""

    result = "denied"


class Malformed(ProviderError):
    """The source answered, but not as documented.

    Args:
        message: what was expected and what came.
        body: the offending bytes, kept (capped, 0600) for inspection.
        mend: what the user can do about it.
    """

    result = "malformed"

    def __init__(self, message: str, *, body: bytes = b"", mend: str = "") -> None:
        super().__init__(message, mend=mend)
        self.body = body


class NotHere(ProviderError):
    """This machine is not on that cloud."""

    result = "not_here"


class ActionError(SpotwatchError):
    """A trainer could not be told; the runner tries again and goes on with the next action."""


class HandshakeError(SpotwatchError):
    """A file between daemon and trainer cannot be trusted or written."""


class StoreError(SpotwatchError):
    """The checkpoint store refused; no pointer has moved."""


class StoreMissing(StoreError):
    """There is no object of that name in the store."""


class StoreConflict(StoreError):
    """An object is not the version that was expected: somebody else has written it."""


class StoreSilent(StoreError):
    """The store does not answer, and was waited for as long as there was patience."""


class NoRoom(StoreError):
    """There is no memory for a copy of the state."""


class CheckpointCorrupt(StoreError):
    """An object is not what its manifest says it is."""


class RankGone(StoreError):
    """Another rank of this run has gone; the ranks can agree on nothing any more."""


class RunTaken(StoreError):
    """Another process has gone on with the run; whatever this one still saves must not count."""
