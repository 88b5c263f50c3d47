# SPDX-License-Identifier: Apache-2.0
"""The user's own commands, run beside an order: argument lists, no shell, a time limit each.

A hook gets our environment without our secrets, and the notice as JSON. The first part of what it prints is
returned, for the journal. It does not decide what happened, and the trainer never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from spotwatch.actions import Occasion
from spotwatch.child import wait_for_end
from spotwatch.config import Hook
from spotwatch.environ import without_secrets
from spotwatch.errors import ActionError
from spotwatch.model import Notice

MAX_OUTPUT_BYTES = 2000
"""What is kept of a hook's output; the rest is read and dropped, so that the hook never blocks on it."""
_GRACE_SECONDS = 1.0
_READ_BYTES = 64 * 1024


class HookTeller:
    """Run the command configured for an occasion.

    Args:
        settings: commands and their time limits.
        environ: the environment to hand on; None: ours.
    """

    name: ClassVar[str] = "hook"

    def __init__(self, settings: Hook, environ: Mapping[str, str] | None = None) -> None:
        self._environ = without_secrets(os.environ if environ is None else environ)
        self._commands: dict[Occasion, tuple[tuple[str, ...], float]] = {
            "notice": (settings.on_notice, settings.on_notice_timeout_seconds),
            "saved": (settings.on_saved, settings.on_saved_timeout_seconds),
            "missed": (settings.on_missed, settings.on_missed_timeout_seconds),
            "survived": (settings.on_survived, settings.on_survived_timeout_seconds),
        }

    @property
    def occasions(self) -> frozenset[Occasion]:
        """Return the occasions that have a command."""
        return frozenset(occasion for occasion, (argv, _) in self._commands.items() if argv)

    async def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> str:
        """Run the command to its end and return what it printed, capped.

        SPOTWATCH_OCCASION, SPOTWATCH_NOTICE and SPOTWATCH_FACTS (both JSON) tell it what happened. What it
        leaves in the background lives on after success, but not past the time limit.

        Raises:
            ActionError: it could not be started, failed, or ran past its limit and was ended with its group.
        """
        argv, limit_seconds = self._commands.get(occasion, ((), 0.0))
        if not argv:
            return ""
        what = f"hook on_{occasion}: {argv[0]!r}"
        with _Output() as output:
            process = self._start(what, argv, output, self._environment(occasion, notice, facts))
            try:
                async with asyncio.timeout(limit_seconds):
                    code = await wait_for_end(process)
            except TimeoutError as error:
                await _end_group(process)
                raise ActionError(
                    f"{what} ran past {limit_seconds:g} s and was ended{output.said()}"
                ) from error
            finally:
                # Only when we are cancelled ourselves is it still there.
                if process.poll() is None:
                    _signal_group(process, signal.SIGKILL)
                    process.wait()
            if code != 0:
                raise ActionError(f"{what} ended with status {code}{output.said()}")
            return f"{what} done{output.said()}"

    def _start(
        self, what: str, argv: tuple[str, ...], output: _Output, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(  # noqa: S603 - the user's own command, an argument list
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output.write_end,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ActionError(f"{what} cannot be started: {reason}") from error
        finally:
            output.close_write_end()

    def _environment(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> dict[str, str]:
        return {
            **self._environ,
            "SPOTWATCH_OCCASION": occasion,
            "SPOTWATCH_NOTICE": json.dumps(notice.to_json()),
            "SPOTWATCH_FACTS": json.dumps(dict(facts), default=str),
        }


class _Output:
    """A pipe whose first bytes are kept, read as they come while the event loop runs."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._loop.add_reader(self._read_end, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        self.close_write_end()

    def close_write_end(self) -> None:
        """Close our own copy, so that the pipe ends with the hook."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def _read(self) -> bool:
        try:
            chunk = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._read_end)
        self._kept += chunk[: MAX_OUTPUT_BYTES - len(self._kept)]
        return bool(chunk)

    def said(self) -> str:
        """Return what was printed, after a colon; empty when nothing was."""
        # Its last words may not have been read yet; what it left in the background may write for ever.
        while len(self._kept) < MAX_OUTPUT_BYTES and self._read():
            pass
        text = self._kept.decode(errors="replace").strip()
        return f": {text}" if text else ""


async def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the hook and what it started: first asked, then made to. The group is ours, as we made it."""
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            await wait_for_end(process)
    # Also when the hook itself went: what it started may have stayed.
    _signal_group(process, signal.SIGKILL)
    await wait_for_end(process)


def _signal_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)
