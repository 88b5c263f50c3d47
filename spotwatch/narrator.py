# SPDX-License-Identifier: Apache-2.0
"""Events as log lines: what a person wants to read, at the level that it deserves.

It configures no logging and decides nothing; polls and ticks are not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotwatch.logs import Logger
from spotwatch.model import Event

SILENT = frozenset(
    {"polled", "measured", "watched", "snapshot", "decided", "told", "time_given", "forgotten"}
)
WARNINGS = frozenset(
    {"noticed", "notice_changed", "notice_stale", "ordered", "body_kept", "status_refused", "other_machine"}
)
ERRORS = frozenset({"missed", "save_failed", "journal_error", "unexpected"})
_HIDDEN = frozenset(
    {"notice", "boot", "deadline_boot", "end_boot", "procs", "notice_to_order_seconds", "url"}
)


class Narrator:
    """Writes each event to a structlog logger."""

    def __init__(self, log: Logger) -> None:
        self._log = log

    def on_event(self, event: Event) -> None:
        """Write one event, or nothing."""
        if event.name in SILENT or (event.name == "webhook" and event.data["result"] != "accepted"):
            # What strangers send is counted; if it were told too, they could fill the disk.
            return
        fields = _fields(event)
        if event.name == "unexpected":
            self._log.error("unexpected", exc_info=event.data.get("exception"), **fields)
        elif event.name in ERRORS or (event.name == "acted" and event.data["result"] != "ok"):
            self._log.error(event.name, **fields)
        elif event.name in WARNINGS or (event.name == "signal_changed" and event.data["state"] != "ok"):
            self._log.warning(event.name, **fields)
        else:
            self._log.info(event.name, **fields)


def _fields(event: Event) -> Mapping[str, Any]:
    row = event.to_json()
    for name in ("at", "event", "exception", *_HIDDEN):
        row.pop(name, None)
    notice = event.data.get("notice")
    if isinstance(notice, Mapping):
        row["detail"] = notice.get("detail", "")
        row["signal"] = notice.get("signal", "")
    return {name: value for name, value in row.items() if value not in ("", None, [])}
