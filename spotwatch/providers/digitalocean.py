# SPDX-License-Identifier: Apache-2.0
"""DigitalOcean: a reclaim that was mailed to the account and posted here by whoever reads that mail.

Spot Droplets are taken back with an e-mail about two hours ahead, a target and no promise; the Droplet's
metadata carries no such signal (DigitalOcean's tutorial on spot GPU Droplets, September 2026; Droplet
metadata reference, 2026-05-05). So the notice is pushed: `POST /webhook/digitalocean`, signed after Standard
Webhooks, with `{"event": "reclaim"|"cancel", "droplet_id" and/or "name", "at": RFC 3339}`.

It does not read mail, and asks the metadata service for nothing but who this Droplet is.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import ClassVar, Self

from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.model import Answer, Evidence
from spotwatch.providers import Context
from spotwatch.providers._do_identity import MAX_ID, ROOT, Whoami, parse_id
from spotwatch.providers._do_inbox import PROVIDER_NAME, SIGNAL, WINDOW_SECONDS, Inbox
from spotwatch.providers._do_message import Message, bearing, parse
from spotwatch.providers._metadata import MetadataClient, read_dmi
from spotwatch.received import Received, Verdict
from spotwatch.webhooks import KEEP_SECONDS, Rejected, ReplayCache, signed_at, verify

INBOX = "inbox"
"""What was pushed is on disk; this signal only says when it is not."""

_DEFAULT_ENDPOINT = "http://169.254.169.254"
# cloud-init, DataSourceDigitalOcean.
_SYS_VENDOR = "DigitalOcean"
_DETECT_SECONDS = 1.5
_MAX_PENDING = 64
_LISTENER_MEND = (
    "set webhook.listen, and webhook.secret_files to a file made with: echo whsec_$(openssl rand -base64 32)"
)
_KNOWN = {
    "duplicate": Verdict(status=200, result="duplicate"),
    "reused": Verdict(status=409, result="replayed"),
    "unknown": Verdict(status=503, result="replayed"),
    "full": Verdict(status=503, result="full"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the `digitalocean` provider."""

    endpoint: str = ""
    """Empty: http://169.254.169.254."""
    interval_seconds: float = 1.0
    """How often the inbox is looked at; what arrives is seen at once."""
    timeout_seconds: float = 2.0
    """For one request to the metadata service."""
    droplet_id: int = 0
    """Instead of what the metadata service says; 0: ask."""
    names: tuple[str, ...] = ()
    """Names of this Droplet alone: a signed notice for one of them may stop the trainer."""
    identity_refresh_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint {self.endpoint!r} has no scheme; write http://HOST[:PORT]")
        for key, value, most in (
            ("interval_seconds", self.interval_seconds, 60),
            ("timeout_seconds", self.timeout_seconds, 30),
            ("identity_refresh_seconds", self.identity_refresh_seconds, 86400),
        ):
            if not 0 < value <= most:
                raise ValueError(f"{key} {value:g} is out of range; use above 0 to {most}")
        if not 0 <= self.droplet_id <= MAX_ID:
            raise ValueError(f"droplet_id {self.droplet_id} is no Droplet's number")
        if not all(name.strip() for name in self.names):
            raise ValueError("names has an empty one; leave it out")


class DigitalOcean:
    """Notices that were pushed to this Droplet."""

    name: ClassVar[str] = PROVIDER_NAME
    config_class: ClassVar[type] = Config
    absence_withdraws: ClassVar[bool] = False

    def __init__(self, config: Config, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._secrets = context.webhook_secrets
        self._tolerance_seconds = context.webhook_tolerance_seconds
        self._state_dir = context.state_dir
        self._names = frozenset(name.strip().casefold() for name in config.names)
        self._endpoint = config.endpoint or _DEFAULT_ENDPOINT
        self._client = MetadataClient(self._endpoint, timeout_seconds=config.timeout_seconds)
        self._whoami = Whoami(
            self._client,
            self._clock,
            refresh_seconds=config.identity_refresh_seconds,
            on_change=self._learn,
        )
        self._asking: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._saving = asyncio.Lock()
        self._pending: dict[str, tuple[Message, bytes]] = {}
        self._inbox = Inbox(None)
        self._replays = ReplayCache(None, now=datetime.fromtimestamp(0, UTC))

    async def __aenter__(self) -> Self:
        """Read what was kept, and begin to ask who we are."""
        folder = self._state_dir
        self._inbox = Inbox(None if folder is None else folder / f"{PROVIDER_NAME}-inbox.json")
        self._replays = ReplayCache(
            None if folder is None else folder / f"{PROVIDER_NAME}-replays.json",
            now=self._clock.now(),
            keep_seconds=max(KEEP_SECONDS, 2 * self._tolerance_seconds),
        )
        if self._config.droplet_id:
            self._inbox.claim(self._config.droplet_id)
        await self._client.__aenter__()
        self._asking = asyncio.create_task(self._whoami.run(), name=f"{PROVIDER_NAME}:identity")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop asking, and close every connection."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking
            self._asking = None
        await self._client.__aexit__(kind, error, trace)

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the names of the signals watched."""
        return (SIGNAL, INBOX)

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
        if self._droplet_id is None:
            await self._first_answer()
        failed: dict[str, ProviderError] = {}
        problem = self._problem()
        if problem is not None:
            failed[SIGNAL] = problem
        trouble = self._inbox.problem or self._replays.problem
        if trouble:
            failed[INBOX] = Unavailable(trouble, mend=f"look after {self._state_dir}")
        answered = frozenset(self.signals) - failed.keys()
        if self._droplet_id is None:
            return Answer(answered=answered, failed=failed)
        self._inbox.expire(self._clock.now())
        notice = self._inbox.notice
        return Answer(
            notices=() if notice is None else (notice,),
            answered=answered,
            failed=failed,
            cancelled=frozenset(self._inbox.ended),
        )

    async def receive(self, request: Received) -> Verdict:
        """Verify the raw bytes, then read and keep them; what is accepted is seen by the next poll at once.

        503 means: heard, perhaps acted on already, but not yet kept for good; send it again.
        """
        now = self._clock.now()
        try:
            webhook_id = verify(
                request.headers,
                request.body,
                self._secrets,
                now=now,
                tolerance_seconds=self._tolerance_seconds,
            )
        except Rejected as rejected:
            return Verdict(status=401, result="replayed" if rejected.is_signed else "unsigned")
        signed = signed_at(request.headers)
        known = _KNOWN.get(self._replays.novelty(webhook_id, request.body, signed_at=signed, now=now))
        if known is not None:
            return await self._kept(known)
        try:
            message = parse(request.body, signed_at=signed, received_at=now)
        except Malformed:
            return Verdict(status=400, result="malformed")
        return await self._kept(self._judge(webhook_id, message, request.body))

    @property
    def _droplet_id(self) -> int | None:
        known = self._whoami.identity
        return self._config.droplet_id or (None if known is None else known.droplet_id)

    def _problem(self) -> ProviderError | None:
        """Return why a push would not be heard, or might concern another Droplet."""
        if not self._secrets:
            return Unavailable(
                "no webhook secret is configured, so no notice can arrive", mend=_LISTENER_MEND
            )
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
        """Wait until the metadata service has been asked once, for as long as its requests may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self._config.timeout_seconds):
                await self._whoami.has_asked.wait()

    async def _learn(self) -> None:
        """Take over a new identity: forget another Droplet's state, and judge what had to wait."""
        droplet_id = self._droplet_id
        if droplet_id is None:
            return
        self._inbox.claim(droplet_id)
        waiting, self._pending = self._pending, {}
        for webhook_id, (message, body) in waiting.items():
            self._judge(webhook_id, message, body)
        self._arrived.set()
        await self._kept(Verdict(status=200, result="accepted"))

    def _judge(self, webhook_id: str, message: Message, body: bytes) -> Verdict:
        """Take a verified message that has not been acted on, put it off, or leave it."""
        known = bearing(
            message, droplet_id=self._droplet_id, identity=self._whoami.identity, names=self._names
        )
        if known == "not_mine":
            return Verdict(status=200, result="not_mine")
        if known == "unknown":
            if len(self._pending) >= _MAX_PENDING and webhook_id not in self._pending:
                return Verdict(status=503, result="full")
            self._pending.setdefault(webhook_id, (message, body))
            return Verdict(status=503, result="pending")
        evidence = Evidence(known)
        if message.event == "reclaim":
            outcome = self._inbox.reclaim(message, evidence, f"signed notice, naming {message.subject}")
        else:
            outcome = self._inbox.cancel(message, evidence)
        if outcome == "refused":
            return Verdict(status=409, result="refused")
        self._replays.remember(webhook_id, body, now=self._clock.now())
        self._arrived.set()
        return Verdict(status=202 if outcome == "accepted" else 200, result=outcome)

    async def _kept(self, verdict: Verdict) -> Verdict:
        """Return `verdict` when all it rests on is on disk, else 503, so that it is sent again."""
        async with self._saving:
            is_kept = await asyncio.to_thread(self._save)
        return verdict if is_kept else Verdict(status=503, result=verdict.result)

    def _save(self) -> bool:
        # The inbox first: dying in between, a repeated push merges into the notice it made.
        return self._inbox.save() and self._replays.save()


PROVIDER = DigitalOcean
