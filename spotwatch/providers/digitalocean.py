# SPDX-License-Identifier: Apache-2.0
"""DigitalOcean: a reclaim that was mailed to the account, and comes here by push or through a mailbox.

Spot Droplets are taken back with an e-mail about two hours ahead, a target and no promise; the Droplet's
metadata carries no such signal (DigitalOcean's tutorial on spot GPU Droplets, September 2026; Droplet
metadata reference, 2026-05-05). So the notice is pushed: the mail itself to `POST
/webhook/digitalocean/<service>`, or, by whoever reads it elsewhere, `{"event": "reclaim"|"cancel",
"droplet_id" and/or "name", "at": RFC 3339}` to `POST /webhook/digitalocean`, signed after Standard Webhooks.
Or `spotwatch relay` puts it into a mailbox, which is polled.

It asks the metadata service for nothing but who this Droplet is, and leaves each way of a notice to a module
of its own: `_do_push`, `_do_mail`, `_do_mailbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.model import Answer
from spotwatch.providers import Context
from spotwatch.providers._do_config import Config
from spotwatch.providers._do_identity import ENDPOINT, ROOT, Known, Whoami, parse_id
from spotwatch.providers._do_letters import claim_of
from spotwatch.providers._do_memory import Memory
from spotwatch.providers._do_push import Pushes
from spotwatch.providers._do_slot import MAILBOX, PROVIDER_NAME, WEBHOOK, WINDOW_SECONDS
from spotwatch.providers._metadata import MetadataClient, read_dmi
from spotwatch.received import Received, Verdict
from spotwatch.webhooks import KEEP_SECONDS

if TYPE_CHECKING:
    from spotwatch.mail.mailbox import Letter
    from spotwatch.providers._do_mail import MailRoute
    from spotwatch.providers._do_mailbox import DropletMailbox, Whose

__all__ = ["PROVIDER", "Config", "DigitalOcean"]

INBOX = "inbox"
"""What was pushed is on disk; this signal only says when it is not."""

# cloud-init, DataSourceDigitalOcean.
_SYS_VENDOR = "DigitalOcean"
_DETECT_SECONDS = 1.5
_NAN = float("nan")
_AHEAD_SECONDS = 1200.0
_LISTENER_MEND = (
    "set webhook.listen, and webhook.secret_files to a file made with: echo whsec_$(openssl rand -base64 32)"
)


class DigitalOcean:
    """Notices that were pushed to this Droplet, or are in its mailbox.

    Raises:
        ConfigError: a service of mail or the mailbox cannot work as configured.
    """

    name: ClassVar[str] = PROVIDER_NAME
    config_class: ClassVar[type] = Config
    absence_withdraws: ClassVar[bool] = False

    def __init__(self, config: Config, context: Context) -> None:
        self._config = config
        self._context = context
        self._clock = context.clock
        self._names = frozenset(name.strip().casefold() for name in config.names)
        self._endpoint = config.endpoint or ENDPOINT
        self._client = MetadataClient(self._endpoint, timeout_seconds=config.timeout_seconds)
        self._whoami = Whoami(
            self._client,
            self._clock,
            refresh_seconds=config.identity_refresh_seconds,
            on_change=self._learn,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Event()
        self._memory = Memory()
        self._pushes = Pushes(context, self._memory, known=self._known, wake=self._arrived.set)
        self._mail: MailRoute | None = None
        self._opening = asyncio.Lock()
        if context.inbound:
            self._open_mail()
        self._has_looked = asyncio.Event()
        """Set when the mailbox has been asked once, or after the time that this may take."""
        self._mailbox: DropletMailbox | None = _open_mailbox(config, context, self._whose)

    async def __aenter__(self) -> Self:
        """Read what was kept, and begin to ask who we are."""
        self._memory.open(
            self._context.state_dir,
            now=self._clock.now(),
            keep_seconds=max(
                KEEP_SECONDS,
                2 * self._context.webhook_tolerance_seconds,
                # A mail counts as long as its date is young, which may lie a little ahead.
                self._context.mail.max_age_seconds + _AHEAD_SECONDS,
            ),
        )
        if self._config.droplet_id:
            self._memory.inbox.belong_to(self._config.droplet_id, since=self._clock.now())
        await self._client.__aenter__()
        self._begin("identity", self._whoami.run())
        if self._mailbox is not None:
            self._begin(MAILBOX, self._mailbox.run(self._take_letters))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop asking, and close every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._mailbox is not None:
            await self._mailbox.close()
        await self._client.__aexit__(kind, error, trace)

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the names of the signals watched."""
        return (*self._sources, INBOX)

    @property
    def measures(self) -> Mapping[str, float]:
        """Return whether the clock is set, and the age of the relay's last sign of life in seconds."""
        is_synced = self._context.is_clock_synced()
        measured = {"clock_synced": _NAN if is_synced is None else float(is_synced)}
        if self._mailbox is not None:
            age = self._mailbox.heartbeat_age_seconds
            measured["mailbox_heartbeat_age_seconds"] = _NAN if age is None else age
        return measured

    @property
    def interval_seconds(self) -> float:
        """Return the time between two looks at the inbox while nothing arrives."""
        return self._config.interval_seconds

    @property
    def window_seconds(self) -> float:
        """Return the two hours that the mail aims at."""
        return WINDOW_SECONDS

    async def detect(self) -> bool:
        """Tell by DMI, else by one answer, whether this is a Droplet."""
        if read_dmi("sys_vendor") == _SYS_VENDOR:
            return True
        async with MetadataClient(self._endpoint, timeout_seconds=_DETECT_SECONDS) as client:
            try:
                parse_id((await client.get(f"{ROOT}/id")).text())
            except ProviderError:
                return False
        return True

    async def identity(self) -> str:
        """Return the Droplet's id.

        Raises:
            ProviderError: the metadata service did not say, nor does the configuration.
        """
        if self._droplet_id is None:
            await self._first_answer()
        if self._droplet_id is None:
            raise self._whoami.problem
        return str(self._droplet_id)

    async def wait(self) -> None:
        """Return when something has arrived, or after the interval."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.interval_seconds):
                await self._arrived.wait()

    async def notices(self) -> Answer:
        """Return what is in the inbox, once it is known whose inbox it is."""
        self._arrived.clear()
        if self._droplet_id is None or not self._has_looked.is_set():
            await self._first_answer()
        problem = self._problem()
        failed = {} if problem is None else dict.fromkeys(self._sources, problem)
        if not self._hears_pushes and WEBHOOK in self._sources:
            failed[WEBHOOK] = Unavailable(
                "no webhook secret is configured, so no notice can arrive", mend=_LISTENER_MEND
            )
        if self._mailbox is not None and self._mailbox.problem is not None:
            failed[MAILBOX] = self._mailbox.problem
        trouble = self._memory.problem
        if trouble:
            failed[INBOX] = Unavailable(trouble, mend=f"look after {self._context.state_dir}")
        answered = frozenset(self.signals) - failed.keys()
        if self._droplet_id is None:
            return Answer(answered=answered, failed=failed)
        inbox = self._memory.inbox
        inbox.expire(self._clock.now())
        return Answer(notices=inbox.notices, answered=answered, failed=failed, cancelled=inbox.ended)

    async def receive(self, request: Received) -> Verdict:
        """Authenticate the raw bytes, then read and keep them; the next poll sees at once what is accepted.

        503 means: heard, perhaps acted on already, but not yet kept for good, or not yet proven; send it
        again.
        """
        if not request.path:
            return await self._pushes.receive(request)
        if self._mail is None and not self._context.webhook_secrets:
            return Verdict(status=404, result="other")
        async with self._opening:
            route = self._mail
            if route is None:
                # In a thread: what mail needs takes a tenth of a second to import.
                route = await asyncio.to_thread(self._open_mail)
        return await route.receive(request)

    @property
    def _droplet_id(self) -> int | None:
        known = self._whoami.identity
        return self._config.droplet_id or (None if known is None else known.droplet_id)

    @property
    def _hears_pushes(self) -> bool:
        return bool(self._context.webhook_secrets or self._context.inbound)

    @property
    def _sources(self) -> tuple[str, ...]:
        """Return the ways that a notice may come; pushes, unless only a mailbox is configured."""
        if self._mailbox is None:
            return (WEBHOOK,)
        return (WEBHOOK, MAILBOX) if self._hears_pushes else (MAILBOX,)

    def _known(self) -> Known:
        return Known(droplet_id=self._droplet_id, identity=self._whoami.identity, names=self._names)

    def _whose(self) -> Whose | None:
        from spotwatch.providers._do_mailbox import Whose  # noqa: PLC0415 - as all of mail

        known = self._known()
        if known.droplet_id is None:
            return None
        hostname = "" if known.identity is None else known.identity.hostname
        return Whose(droplet_id=known.droplet_id, names=(*sorted(known.names), hostname))

    def _begin(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"{PROVIDER_NAME}:{what}"))

    def _open_mail(self) -> MailRoute:
        # Imported late: a daemon that hears no mail has no use for it.
        from spotwatch.providers._do_mail import MailRoute, make_desk  # noqa: PLC0415
        from spotwatch.providers._do_services import make_doors  # noqa: PLC0415

        route = MailRoute(
            self._context,
            make_doors(self._context),
            make_desk(self._context),
            self._memory,
            known=self._known,
            wake=self._arrived.set,
        )
        self._mail = route
        return route

    async def _take_letters(self, letters: Sequence[Letter]) -> None:
        """Take what a mailbox says; before it is known whose it is nothing is, and all is read again then."""
        self._has_looked.set()
        now, droplet_id = self._clock.now(), self._droplet_id
        if droplet_id is None:
            return
        inbox, booted_at = self._memory.inbox, now - timedelta(seconds=self._clock.boot())
        claims = [
            claim_of(
                letter,
                droplet_id=droplet_id,
                now=now,
                is_before_us=inbox.is_before_us(letter.issued_at, booted_at=booted_at),
            )
            for letter in letters
        ]
        outcomes = [inbox.take(claim) for claim in claims if claim is not None]
        if "accepted" in outcomes:
            self._arrived.set()
        if outcomes:
            await self._memory.save()

    def _problem(self) -> ProviderError | None:
        """Return why it is not certain whose notices would be heard."""
        if self._droplet_id is None:
            error = self._whoami.problem
            mend = f"see whether {self._endpoint}{ROOT}/id answers, or set provider.digitalocean.droplet_id"
            return Unavailable(f"which Droplet this is, is unknown: {error}", mend=mend)
        known = self._whoami.identity
        if known is not None and known.droplet_id != self._droplet_id:
            return Malformed(
                f"provider.digitalocean.droplet_id is {self._droplet_id}, but the metadata service says "
                f"{known.droplet_id}",
                mend="remove the setting; it came with a copied image, perhaps",
            )
        return None

    async def _first_answer(self) -> None:
        """Wait until metadata service and mailbox have been asked once, for as long as requests may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self._config.timeout_seconds):
                if self._droplet_id is None:
                    await self._whoami.has_asked.wait()
                if self._mailbox is not None:
                    await self._has_looked.wait()
        self._has_looked.set()

    async def _learn(self) -> None:
        """Take over a new identity: forget another Droplet's state, and judge what had to wait."""
        droplet_id = self._droplet_id
        if droplet_id is None:
            return
        self._memory.inbox.belong_to(droplet_id, since=self._clock.now())
        self._pushes.settle()
        if self._mail is not None:
            await self._mail.settle()
        self._arrived.set()
        await self._memory.save()


def _open_mailbox(
    config: Config, context: Context, whose: Callable[[], Whose | None]
) -> DropletMailbox | None:
    if not config.mailbox:
        return None
    # Imported late, as all of mail.
    from spotwatch.providers._do_mailbox import open_mailbox  # noqa: PLC0415

    return open_mailbox(
        config.mailbox,
        config.mailbox_keys,
        context.clock,
        whose=whose,
        environ=context.environ,
        credentials_file=config.mailbox_credentials_file,
        interval_seconds=config.mailbox_interval_seconds,
    )


PROVIDER = DigitalOcean
