# SPDX-License-Identifier: Apache-2.0
"""The relay as a process: its parts made of the settings, joined, run, and ended so that no letter is lost.

What each part does is its own business.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from spotwatch import __version__
from spotwatch.clock import Clock
from spotwatch.clock_sync import is_clock_synced
from spotwatch.config import Settings
from spotwatch.config_secrets import read_secret
from spotwatch.errors import ProviderError
from spotwatch.held_signal import let_through
from spotwatch.logs import LogOnChange, get_logger
from spotwatch.mail.mailbox import Heartbeat, Letter
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.mail.mailbox_writer import MailboxWriter, open_objects
from spotwatch.metrics import NAN
from spotwatch.provider_making import make_context
from spotwatch.providers._do_mail import make_desk
from spotwatch.providers._do_services import make_doors
from spotwatch.relay.fleet import REFRESH_SECONDS, Fleet
from spotwatch.relay.making import asking, check, disk_problem, lock
from spotwatch.relay.metrics import NOBODY, RelayMetrics
from spotwatch.relay.outbox import Outbox
from spotwatch.relay.receiving import RelayReceiver
from spotwatch.relay.replays import RelayReplays
from spotwatch.sdnotify import make_notifier
from spotwatch.server import MetricsServer, WebhookServer
from spotwatch.webhook_guard import Limits

PATH = "digitalocean"
"""The name in `/webhook/<name>/<service>`: the same as a Droplet's own, so that a sender may change over."""
HEALTHY_SECONDS = 10.0
LAST_SENDING_SECONDS = 5.0

_SILENT_HEARTBEATS = 3
_NO_CLOCK = (
    "this machine's clock is not set, so that a mail may look too old or too early, and then only flushes; "
    "start a time service (timedatectl set-ntp true)"
)
_NO_STATE_DIR = "no state_dir is writable: a letter is answered for only once it is in the mailbox"
# What the listener refuses before the receiver sees it; all else the receiver counts itself.
_UNSEEN = frozenset({"bad_method", "slow", "too_large", "encoded", "limited", "aborted", "failed"})


class Relay:
    """One run of the relay.

    Args:
        settings: checked.
        clock: the real one, outside tests.
        environ: holds the credentials of the mailbox, and systemd's socket.
        clock_sync: tells whether the clock is set right; None: nobody says.

    Raises:
        ConfigError: it cannot be started as configured.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        environ: Mapping[str, str],
        clock_sync: Callable[[], bool | None] = is_clock_synced,
    ) -> None:
        check(settings)
        self._settings = settings
        self._clock = clock
        self._clock_sync = clock_sync
        self._log = get_logger()
        self._changes = LogOnChange(self._log)
        self._notifier = make_notifier(environ)
        self._ending = asyncio.Event()
        self._last_tick = clock.monotonic()
        self._beaten_at: float | None = None
        self._begun_at = clock.monotonic()
        state_dir = settings.state_dir
        context = make_context(settings, clock, state_dir=state_dir, environ=environ)
        doors = make_doors(context)
        key = SigningKey.parse(read_secret(settings.relay.key_file))
        self.metrics = RelayMetrics(list(doors))
        self.fleet = Fleet(settings.relay.droplet, asking(settings), clock, state_dir=state_dir)
        self._writer = MailboxWriter(open_objects(settings.relay.mailbox, environ), key)
        self.outbox = Outbox(
            self._writer,
            clock,
            state_dir=state_dir,
            on_written=self._on_written,
            on_failed=self.metrics.count_failure,
        )
        self._replays = RelayReplays(
            state_dir, now=clock.now(), tolerance_seconds=settings.webhook.tolerance_seconds
        )
        self.receiver = RelayReceiver(
            context,
            doors,
            make_desk(context),
            fleet=self.fleet,
            outbox=self.outbox,
            replays=self._replays,
            count=self.metrics.count_request,
        )
        self.webhook = WebhookServer(
            settings.webhook.listen,
            receivers={PATH: self.receiver},
            on_request=self._on_request,
            say=self._say,
            limits=Limits(body_bytes=settings.webhook.max_body_bytes),
            trusted_proxies=settings.webhook.trusted_proxies,
        )
        self.http = MetricsServer(
            settings.http.listen,
            render=self._render,
            is_healthy=self._is_healthy,
            not_ready=self.not_ready,
            status=self.status,
            say=self._say,
        )
        # Last: what fails before must not leave it behind.
        self._lock = lock(state_dir)

    # -- running -------------------------------------------------------------------------------------------

    async def serve(self) -> int:
        """Run until told to end, and return the exit code."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._ending.set)
        let_through()
        try:
            # Before the first sign of life, which says that mail can come.
            await self.webhook.start()
            await self.http.start()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(work, name=name)
                    for name, work in (
                        ("fleet", self._every(REFRESH_SECONDS, self._refresh)),
                        ("outbox", self.outbox.run()),
                        ("heartbeat", self._every(self._settings.relay.heartbeat_seconds, self._beat)),
                        ("tick", self._every(1.0, self._tick)),
                    )
                ]
                self._log.info("relaying", **self.status())
                if self._settings.state_dir is None:
                    self._log.warning("check", problem=_NO_STATE_DIR)
                self._notifier.ready()
                await self._ending.wait()
                self._notifier.stopping()
                await self.webhook.close()
                await self._send_the_rest()
                for task in running:
                    task.cancel()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.close()
        return 0

    async def once(self) -> list[str]:
        """Ask the API, send what waits and write a sign of life, each once; return what went wrong."""
        await self._refresh()
        await self.outbox.send()
        problems = [disk_problem(self._settings.state_dir) or self.outbox.disk_problem]
        problems += [_in_words(one) for one in (self.fleet.problem, self.outbox.problem) if one is not None]
        try:
            await self._writer.beat(self._heartbeat())
        except ProviderError as error:
            problems.append(_in_words(error))
        await self.close()
        return [problem for problem in dict.fromkeys(problems) if problem]

    def end(self) -> None:
        """Let `serve` come to its end."""
        self._ending.set()

    async def close(self) -> None:
        """Close what is open; what waits stays on disk."""
        await self.webhook.close()
        await self.http.close()
        await self._writer.close()
        self._lock.close()

    # -- what it says of itself ----------------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """Return why a mail might not reach a Droplet just now; nothing: it would."""
        reasons = [
            self.webhook.problem,
            disk_problem(self._settings.state_dir),
            self.outbox.disk_problem,
            self._replays.problem,
        ]
        if self._clock_sync() is False:
            reasons.append(_NO_CLOCK)
        if not self.fleet.is_known:
            reasons.append(f"which Droplets there are, is unknown: {self.fleet.problem or 'not asked yet'}")
        elif self.fleet.problem is not None:
            reasons.append(f"the list of Droplets gets old: {self.fleet.problem}")
        if self.outbox.problem is not None:
            reasons.append(f"{len(self.outbox)} letters wait: {self.outbox.problem}")
        age = self._clock.monotonic() - (self._begun_at if self._beaten_at is None else self._beaten_at)
        if age > _SILENT_HEARTBEATS * self._settings.relay.heartbeat_seconds:
            reasons.append(f"no sign of life was written for {age:.0f} s")
        return [reason for reason in reasons if reason]

    def status(self) -> dict[str, Any]:
        """Return what people may want to see, without names and numbers of Droplets."""
        return {
            "spotwatch": __version__,
            "relay": True,
            "droplets": len(self.fleet.droplets),
            "outbox": len(self.outbox),
            "mailbox": self._settings.relay.mailbox,
            "listen": self._settings.webhook.listen,
            "not_ready": self.not_ready(),
        }

    def _render(self, accept: str) -> tuple[bytes, str]:
        self.metrics.outbox.set(len(self.outbox))
        self.metrics.droplets.set(len(self.fleet.droplets))
        listed_at, is_synced = self.fleet.listed_at, self._clock_sync()
        self.metrics.fleet_at.set(NAN if listed_at is None else listed_at.timestamp())
        self.metrics.asks_api.set(bool(self._settings.relay.token_file))
        self.metrics.clock_synced.set(NAN if is_synced is None else is_synced)
        return self.metrics.render(accept)

    def _is_healthy(self) -> bool:
        return self._clock.monotonic() - self._last_tick < HEALTHY_SECONDS

    def _say(self, line: str) -> None:
        self._log.warning("http", problem=line)

    def _on_request(self, _: str, result: str) -> None:
        if result in _UNSEEN:
            self.metrics.count_request(NOBODY, result)

    def _on_written(self, letter: Letter) -> None:
        self.metrics.count_letter(letter)
        self._log.info(
            "letter",
            to=letter.to.key,
            does=letter.event,
            evidence=letter.evidence,
            deadline=letter.at,
            why=letter.detail,
        )

    # -- loops ---------------------------------------------------------------------------------------------

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - one loop that ends would take the listener with it
                self._log.error("unforeseen", problem=f"{type(error).__name__}: {error}")
            await self._clock.sleep(seconds)

    async def _tick(self) -> None:
        self._last_tick = self._clock.monotonic()
        self._notifier.watchdog()

    async def _refresh(self) -> None:
        await self.fleet.refresh()
        self._tell("fleet", self.fleet.problem)

    async def _beat(self) -> None:
        """Say that the relay lives: only while mail can reach it."""
        if not self.webhook.is_bound:
            return
        try:
            await self._writer.beat(self._heartbeat())
        except ProviderError as error:
            self.metrics.count_failure(error)
            self._tell("mailbox", error)
            return
        self._beaten_at = self._clock.monotonic()
        self.metrics.heartbeat_at.set(self._clock.now().timestamp())
        self._tell("mailbox", None)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(at=self._clock.now(), interval_seconds=self._settings.relay.heartbeat_seconds)

    def _tell(self, what: str, problem: ProviderError | None) -> None:
        if problem is None:
            self._changes.say(what, "ok", what)
        else:
            self._changes.say(
                what, problem.result, what, level="warning", problem=str(problem), mend=problem.mend
            )

    async def _send_the_rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SENDING_SECONDS):
                await self.outbox.send()


def _in_words(error: ProviderError) -> str:
    return f"{error}; {error.mend}" if error.mend else str(error)


async def serve(settings: Settings, clock: Clock, *, environ: Mapping[str, str]) -> int:
    """Run a relay with these settings, and return its exit code.

    Raises:
        ConfigError: it cannot be started as configured.
    """
    return await Relay(settings, clock, environ=environ).serve()
