# SPDX-License-Identifier: Apache-2.0
"""All parts of one daemon, made from its settings, joined, and taken apart in the reverse order.

It decides nothing: what runs when is the daemon's, what is done the runner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from spotwatch import providers
from spotwatch.actions import Teller
from spotwatch.actions.announce import AnnounceTeller
from spotwatch.actions.handshake import HandshakeAction
from spotwatch.actions.hook import HookTeller
from spotwatch.child import Child
from spotwatch.clock import Clock
from spotwatch.config import Settings
from spotwatch.config_print import digest_settings
from spotwatch.detection import detect
from spotwatch.dry_run import DryHandshake, DryTarget, DryTeller
from spotwatch.errors import ActionError, HandshakeError
from spotwatch.journal import FileJournal, Journal, MemoryJournal, read_journal
from spotwatch.kept_bodies import KeptBodies
from spotwatch.ledger import Ledger
from spotwatch.logs import Logger
from spotwatch.metrics import Metrics
from spotwatch.model import Event
from spotwatch.narrator import Narrator
from spotwatch.parts import Parts
from spotwatch.policy import estimate
from spotwatch.provider_making import make_provider
from spotwatch.providers import Confirmer, Provider, Receiver, Windowed
from spotwatch.runner import Runner
from spotwatch.save_fit import only_periodic
from spotwatch.server import MetricsServer, WebhookServer
from spotwatch.status_page import StatusPage
from spotwatch.targets import Supervised, Target, make_targets
from spotwatch.telling import Tellers
from spotwatch.trainers import Trainers
from spotwatch.upkeep import Upkeep
from spotwatch.watcher import Watcher
from spotwatch.webhook_guard import Limits

NOT_JOURNALED = frozenset({"polled", "measured", "watched", "webhook", "journal_error"})
LAST_TELLING_SECONDS = 5.0


class Assembly:
    """The parts of one daemon; an async context manager.

    Args:
        settings: checked.
        clock: handed to every part.
        log: where events are told.
        child: the trainer, if it is to be our child; not started yet.
        is_dry_run: act on nothing, write no journal.
        is_healthy: answers /healthz.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        log: Logger,
        child: Child | None,
        is_dry_run: bool,
        is_healthy: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self._child = child
        self._is_dry_run = is_dry_run
        self._is_healthy = is_healthy
        self._stack = AsyncExitStack()
        self._servers: list[MetricsServer | WebhookServer] = []
        self.is_detecting = "auto" in settings.providers
        self.warnings: list[str] = []
        self.watchers: list[Watcher] = []

    async def __aenter__(self) -> Self:
        """Make everything; what was made is taken apart again if a later part fails."""
        async with AsyncExitStack() as stack:
            self.targets = self._make_targets()
            self.upkeep = Upkeep(
                self._settings, self._clock, self.targets, log=self._log, is_dry_run=self._is_dry_run
            )
            self._owners = self.upkeep.owners
            await self._owners.refresh()
            stack.callback(self.upkeep.close)
            self.warnings += self.upkeep.begin()
            self.ledger = Ledger(self._clock)
            self.journal = self._open_journal()
            stack.callback(self.journal.close)
            self._make_acting_parts()
            stack.push_async_callback(self.tellers.finish, LAST_TELLING_SECONDS)
            found = await self._choose_providers()
            self.metrics = Metrics([p.name for p in found], [p.name for p in found if _receives(p)])
            self.metrics.add_process()
            self._warn_of_short_windows(found)
            self._subscribe()
            for provider in found:
                await stack.enter_async_context(provider)
                self.watchers.append(self._make_watcher(provider))
            self.status_page = StatusPage(
                parts=self.parts,
                runner=self.runner,
                watchers=self.watchers,
                clock=self._clock,
                is_dry_run=self._is_dry_run,
                settings=digest_settings(self._settings),
            )
            self._make_servers(found)
            for server in self._servers:
                stack.push_async_callback(server.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take everything apart: listeners first, the journal last."""
        await self._stack.__aexit__(kind, error, trace)

    @property
    def has_cloud(self) -> bool:
        """Tell whether anything beside `file` is watched."""
        return any(watcher.provider.name != "file" for watcher in self.watchers)

    async def start_servers(self) -> None:
        """Begin to listen; a busy port is said and tried again, the watch goes on."""
        for server in self._servers:
            await server.start()

    async def detect_again(self) -> list[Watcher]:
        """Look for a cloud once more, and return the watchers of what was found."""
        added = []
        for provider in await self._detect():
            await self._stack.enter_async_context(provider)
            self.metrics.add_provider(provider.name)
            watcher = self._make_watcher(provider)
            self.watchers.append(watcher)
            added.append(watcher)
        return added

    async def is_trainer_there(self) -> bool:
        """Tell whether a target is found or a trainer reports; systemd knows better than a last report."""
        supervised = [target for target in self.targets if isinstance(target, Supervised)]
        if supervised and len(supervised) == len(self.targets):
            downs = await asyncio.gather(*(asyncio.to_thread(target.is_down) for target in supervised))
            if all(downs):
                return False
        if self.trainers.fresh():
            return True
        for target in self.targets:
            try:
                await asyncio.to_thread(target.find)
            except ActionError:
                continue
            return True
        return False

    def summary(self) -> dict[str, Any]:
        """Return what the start log says."""
        return {
            "providers": {w.provider.name: list(w.provider.signals) for w in self.watchers},
            "targets": [target.label for target in self.targets],
            "runtime_dir": str(self._settings.runtime_dir),
            "state_dir": str(self._settings.state_dir),
            "flag": str(self.parts.handshake.flag),
            "dry_run": self._is_dry_run,
        }

    # -- making --------------------------------------------------------------------------------------------

    def _make_targets(self) -> tuple[Target, ...]:
        targets = make_targets(self._settings.target, self._child)
        if not targets:
            self.warnings.append(
                "no target is configured: a stop is told through order.json, draining and the flag only"
            )
        return tuple(DryTarget(target) for target in targets) if self._is_dry_run else targets

    def _open_journal(self) -> Journal:
        state_dir = self._settings.state_dir
        if state_dir is None:
            self.warnings.append("no state_dir is writable: nothing outlives a restart of the daemon")
            return MemoryJournal()
        events, unreadable = read_journal(state_dir)
        misfits = self.ledger.replay(events)
        if unreadable or misfits:
            self.warnings.append(
                f"journal: {unreadable} unreadable and {misfits} unfitting rows were left out"
            )
        if self._is_dry_run:
            return MemoryJournal()
        loop = asyncio.get_running_loop()
        return FileJournal(
            state_dir,
            snapshot=self.ledger.snapshot,
            on_error=lambda text: _from_thread(loop, self._on_journal_error, text),
        )

    def _on_journal_error(self, text: str) -> None:
        self.ledger.record("journal_error", error=text)

    def _make_acting_parts(self) -> None:
        settings = self._settings
        make = DryHandshake if self._is_dry_run else HandshakeAction
        files = make(
            settings.runtime_dir, settings.flag.path, boot_id=self._clock.boot_id, owner=self._owners.of_flag
        )
        try:
            files.clear_other_boots()
        except HandshakeError as error:
            self.warnings.append(str(error))
        self.trainers = Trainers(
            settings.runtime_dir, owners=self._owners.of_status, ledger=self.ledger, clock=self._clock
        )
        self.tellers = Tellers(self._make_tellers(), ledger=self.ledger, clock=self._clock)
        self._confirmers: dict[str, Confirmer] = {}
        self.parts = Parts(
            ledger=self.ledger,
            policy=settings.policy,
            clock=self._clock,
            journal=self.journal,
            handshake=files,
            trainers=self.trainers,
            tellers=self.tellers,
            targets=self.targets,
            confirmers=self._confirmers,
            release=settings.release,
            before_order=self._owners.refresh,
        )
        self.runner = Runner(self.parts)

    def _make_tellers(self) -> list[Teller]:
        tellers: list[Teller] = [HookTeller(self._settings.hook)]
        tellers += [AnnounceTeller(one) for one in self._settings.announce]
        return [DryTeller(teller) for teller in tellers] if self._is_dry_run else tellers

    def _subscribe(self) -> None:
        self.ledger.subscribe(self._to_journal)
        self.ledger.subscribe(self.metrics.on_event)
        self.ledger.subscribe(Narrator(self._log).on_event)
        # Only now, so that log and journal say which cases a reboot has closed.
        self.ledger.settle_identity("")

    def _to_journal(self, event: Event) -> None:
        if event.name not in NOT_JOURNALED:
            self.journal.append(event)

    def _make_watcher(self, provider: Provider) -> Watcher:
        if isinstance(provider, Confirmer) and not self._is_dry_run:
            self._confirmers[provider.name] = provider
        return Watcher(
            provider,
            self.ledger,
            self._clock,
            wake=self.runner.wake,
            kept_bodies=KeptBodies(self._settings.state_dir),
        )

    async def _choose_providers(self) -> list[Provider]:
        named = [name for name in self._settings.providers if name not in ("auto", "file")]
        chosen = [self._make_provider(name) for name in dict.fromkeys(named)]
        if self.is_detecting:
            known = {provider.name for provider in chosen}
            chosen += [provider for provider in await self._detect() if provider.name not in known]
            if not chosen:
                self.warnings.append("no cloud was found here: only hand-made notices are watched")
        return [*chosen, self._make_provider("file")]

    async def _detect(self) -> list[Provider]:
        candidates = [self._make_provider(name) for name in providers.names() if name != "file"]
        found = await detect(candidates, say=lambda line: self._log.warning("detect", problem=line))
        return [self._make_provider(provider.name) for provider in found]

    def _make_provider(self, name: str) -> Provider:
        state_dir = None if self._is_dry_run else self._settings.state_dir
        return make_provider(self._settings, name, self._clock, state_dir=state_dir)

    def _warn_of_short_windows(self, found: Sequence[Provider]) -> None:
        windows = {one.name: one.window_seconds for one in found if isinstance(one, Windowed)}
        save_seconds = estimate(self._settings.policy, self.ledger.measured_saves())
        self.warnings += only_periodic(windows, save_seconds)

    def _make_servers(self, found: Sequence[Provider]) -> None:
        settings = self._settings
        self._servers.append(
            MetricsServer(
                settings.http.listen,
                render=self.metrics.render,
                is_healthy=self._is_healthy,
                not_ready=self._not_ready,
                status=self.status_page.document,
                say=self._say,
            )
        )
        receivers: Mapping[str, Receiver] = {p.name: p for p in found if isinstance(p, Receiver)}
        self._servers.append(
            WebhookServer(
                settings.webhook.listen,
                receivers=receivers,
                on_request=self._on_webhook,
                say=self._say,
                limits=Limits(body_bytes=settings.webhook.max_body_bytes),
                trusted_proxies=settings.webhook.trusted_proxies,
            )
        )

    def _say(self, line: str) -> None:
        self._log.warning("http", problem=line)

    def _on_webhook(self, name: str, result: str) -> None:
        self.ledger.record("webhook", provider=name, result=result)

    def _not_ready(self) -> list[str]:
        reasons = [r for w in self.watchers if w.provider.name != "file" for r in w.not_ready()]
        return reasons + [server.problem for server in self._servers[1:] if server.problem]


def _receives(provider: Provider) -> bool:
    return isinstance(provider, Receiver)


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[str], None], text: str) -> None:
    try:
        loop.call_soon_threadsafe(call, text)
    except RuntimeError:
        # The loop has ended: nobody is left to be told.
        return
