# SPDX-License-Identifier: Apache-2.0
"""How the log is written: one harmless line for each event, as JSON or for people.

Every value counts as foreign: capped, control and bidi characters escaped, secrets masked by their name.
What is worth a line is decided elsewhere. Import structlog from here or after here, never before.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, TextIO

from spotwatch.masking import MASK, escape, is_secret_name


@contextmanager
def _without_rich() -> Iterator[None]:
    """Hide rich from structlog, which loads it (some 10 MiB) merely because it is installed."""
    is_hidden = "rich" not in sys.modules
    if is_hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # import's own way to say "there is none"
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules["rich"]


with _without_rich():
    import structlog
    import structlog.dev
    import structlog.typing

Logger = structlog.typing.FilteringBoundLogger
"""What `get_logger` returns; annotate with this, so that structlog need not be imported first."""
Format = Literal["auto", "console", "json"]
MAX_DEPTH = 4
MAX_ITEMS = 50
MAX_TRACEBACK_CHARACTERS = 8000
_OURS = frozenset({"level", "at", "exception"})


def set_up_logging(*, format: Format = "auto", level: str = "info", stream: TextIO | None = None) -> None:  # noqa: A002 - the setting's own name
    """Send every log line of this process, the standard library's too, to `stream` in one form.

    Args:
        format: auto is console on a terminal and JSON elsewhere.
        level: debug, info, warning or error; what is less is dropped.
        stream: None: standard error.
    """
    out = _Stream(sys.stderr if stream is None else stream)
    is_console = format == "console" or (format == "auto" and out.is_terminal)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            clean,
            _console(colors=out.is_terminal) if is_console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: out,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _FromStandardLibrary)]:
        root.removeHandler(old)
    root.addHandler(_FromStandardLibrary())
    root.setLevel(max(threshold, logging.WARNING))


def get_logger(**bound: Any) -> Logger:
    """Return a logger; `bound` goes with each of its lines."""
    logger: Logger = structlog.get_logger(**bound)
    return logger


class LogOnChange:
    """One line for each change of state, however often the state is reported.

    Args:
        logger: from `get_logger`.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._seen: dict[Hashable, tuple[Hashable, int]] = {}

    def say(self, key: Hashable, state: Hashable, event: str, *, level: str = "info", **fields: Any) -> bool:
        """Log `event` if `state` is not what `key` was in before; tell whether it was logged.

        The line says how often the former state was reported (`after_times`).
        """
        before, times = self._seen.get(key, (None, 0))
        if key in self._seen and before == state:
            self._seen[key] = (state, times + 1)
            return False
        self._seen[key] = (state, 1)
        if times:
            fields |= {"before": before, "after_times": times}
        getattr(self._logger, level)(event, state=state, **fields)
        return True

    def forget(self, key: Hashable) -> None:
        """Treat the next state of `key` as its first."""
        self._seen.pop(key, None)


def clean(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask, cap and escape every value of a log line."""
    for key, value in event.items():
        if key == "exception":
            event[key] = escape(str(value), limit=MAX_TRACEBACK_CHARACTERS, keep="\n")
        elif key not in _OURS:
            event[key] = _clean(key, value, MAX_DEPTH)
    return event


def _clean(key: str, value: Any, depth: int) -> Any:
    if is_secret_name(key) and value:
        return MASK
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value  # JSON has no NaN
    if depth > 0 and isinstance(value, Mapping):
        return {escape(str(k)): _clean(str(k), v, depth - 1) for k, v in list(value.items())[:MAX_ITEMS]}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [_clean("", v, depth - 1) for v in list(value)[:MAX_ITEMS]]
    try:
        return escape(str(value))
    except Exception:  # noqa: BLE001 - a foreign __str__ must not end the daemon
        return f"<{type(value).__name__}>"


def _console(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, timestamp_key="at"
    )


class _Stream:
    """Writes lines; a log that cannot be written must never stop the watch."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):  # full disk, closed pipe, closed file
            self._stream.write(message + "\n")
            self._stream.flush()

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _FromStandardLibrary(logging.Handler):
    """Hands asyncio's and aiohttp's records on, so that they get the same form and the same care."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a bad format string in somebody's library
            name = "error" if record.levelno >= logging.ERROR else "warning"
            getattr(get_logger(), name)(record.getMessage(), logger=record.name, exc_info=record.exc_info)
