# SPDX-License-Identifier: Apache-2.0
"""The emulator: one cloud on one port, what it announces, which faults are in force, who asked for what.

It does not know any cloud's pages (`aws`, `gcp`, `azure`, `digitalocean`) nor stories (`scenarios`).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from spotwatch.clock import Clock, SystemClock
from spotwatch.emulator._base import Cloud
from spotwatch.emulator._desk import Desk, Request
from spotwatch.emulator._listener import Listener
from spotwatch.emulator._mail import ACCOUNT, Mailer, NameServer
from spotwatch.emulator._push import Relay
from spotwatch.emulator.digitalocean import DigitalOcean
from spotwatch.emulator.faults import Fault, Faults, canonical
from spotwatch.errors import ConfigError
from spotwatch.model import Event

_CLOUDS = ("aws", "gcp", "azure", "digitalocean")


def clouds() -> tuple[str, ...]:
    """Return the names of the clouds that can be played."""
    return _CLOUDS


class Emulator:
    """One cloud, played on loopback while the context is open.

    Args:
        name: one of `clouds()`.
        host: an address of this machine.
        port: 0 lets the system choose.
        clock: what time it is there.
        listener: told of every request, notice and fault as it happens.
        webhook_url: where DigitalOcean's notices go when `announce` is used.
        secret: the `whsec_…` secret that signs them.
        by_mail: post them as DKIM-signed mail; `environment` then also says where its key is found.
        knobs: fields of the cloud's class, such as `gke=True` or `first_call_seconds=119`.

    Raises:
        ConfigError: no cloud of that name, a secret that is none, or a cloud that sends no mail.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        listener: Callable[[Event], None] | None = None,
        webhook_url: str = "",
        secret: str = "",
        by_mail: bool = False,
        **knobs: Any,
    ) -> None:
        if name not in _CLOUDS:
            raise ConfigError(f"unknown cloud {name!r}; have {', '.join(_CLOUDS)}")
        self.name = name
        self.clock: Clock = clock or SystemClock()
        made: Cloud = importlib.import_module(f"spotwatch.emulator.{name}").CLOUD(clock=self.clock, **knobs)
        self.cloud = made
        self._host = host
        self._port = port
        self._tell = listener
        self._faults = Faults()
        if by_mail and not isinstance(made, DigitalOcean):
            raise ConfigError(f"{name} announces nothing by mail; digitalocean does")
        mailer = Mailer() if by_mail else None
        self._name_server = None if mailer is None else NameServer(mailer.records)
        self._relay = (
            Relay(
                made,
                self.clock,
                self._faults,
                self._event,
                webhook_url=webhook_url,
                secret=secret,
                mailer=mailer,
            )
            if isinstance(made, DigitalOcean)
            else None
        )
        self._listener: Listener | None = None
        self._desk = Desk(made, self.clock, self._faults, self._event)
        self._tasks: set[asyncio.Task[int]] = set()

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: the address is not ours, or taken.
        """
        server = web.Server(self._desk.handle, handler_cancellation=True, access_log=None)
        self._listener = Listener(server, self._host, self._port)
        await self._listener.open()
        self._desk.base_url = self.base_url
        if self._name_server is not None:
            await self._name_server.open()
        if self._faults.refuses:
            self._listener.refuse()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything: no task and no socket is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._name_server is not None:
            self._name_server.close()
        if self._listener is not None:
            await self._listener.close()

    @property
    def port(self) -> int:
        """Return the port."""
        return self._port if self._listener is None else self._listener.port

    @property
    def base_url(self) -> str:
        """Return scheme, host and port, without a trailing slash."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that point a daemon here."""
        variables = self.cloud.environment(self.base_url)
        if self._name_server is None or not isinstance(self.cloud, DigitalOcean):
            return variables
        return variables | {
            "SPOTWATCH_MAIL__RESOLVERS": self._name_server.address,
            "SPOTWATCH_MAIL__ACCOUNT_ADDRESSES": ACCOUNT,
            "SPOTWATCH_PROVIDER__DIGITALOCEAN__NAMES": self.cloud.hostname,
        }

    @property
    def identity(self) -> str:
        """Return the cloud's id of the machine played; a knob gives a replacement another one."""
        return self.cloud.identity

    @property
    def requests(self) -> list[Request]:
        """Return what was asked so far, the oldest first; the last 100,000."""
        return list(self._desk.records)

    def announce(self, window_seconds: float = 120.0, signal: str | None = None, **details: Any) -> datetime:
        """Put a notice in force and return its deadline.

        Args:
            window_seconds: from now to the deadline.
            signal: one of the cloud's; None: its main reclaim notice.
            details: what that signal takes, such as `action="stop"` or `resources=[…]`.

        Raises:
            ConfigError: no such signal or detail, or a cloud that pushes and no webhook to push to.
        """
        if self._relay is not None and not self._relay.is_ready:
            raise ConfigError(
                "digitalocean pushes its notice: give the emulator webhook_url and secret, or use push()"
            )
        notice = self.cloud.announce(signal, window_seconds, details)
        deadline = notice.at + timedelta(seconds=window_seconds)
        data = {"signal": notice.signal, "deadline": deadline, "window_seconds": window_seconds, **details}
        self._event("announced", data)
        self._desk.change()
        self._send("reclaim", details, deadline)
        return deadline

    def withdraw(self, signal: str | None = None) -> None:
        """Take back every notice, or those of one signal; a cloud that pushes posts a cancel for each.

        Raises:
            ConfigError: the cloud has no such signal.
        """
        gone = self.cloud.withdraw(signal)
        self._event("withdrawn", {"signal": signal or "all"})
        self._desk.change()
        for notice in gone:
            self._send("cancel", notice.details)

    def fault(
        self,
        name: str,
        signal: str | None = None,
        times: int | None = None,
        *,
        seconds: float | None = None,
        body: bytes | None = None,
    ) -> None:
        """Put a fault of `FAULTS` in force, beside those already there; the newest spoils the answer.

        Args:
            name: as listed; `10 MB` and `slow_body` are understood.
            signal: the page it concerns; None: all.
            times: how many answers; None: until `heal`.
            seconds: hang: the delay; clock-skew: the offset; 429 and 503: Retry-After.
            body: for wrong-type and html: what to say instead.

        Raises:
            ConfigError: no such fault or signal, or `times` below 1.
        """
        page = None if signal is None else self.cloud.page_for_fault(signal)
        fault = Fault(name=canonical(name), page=page, left=times, seconds=seconds, body=body)
        self._faults.add(fault)
        self._event("fault", {"fault": fault.name, "signal": signal or "all", "times": times})
        if self._faults.refuses and self._listener is not None:
            self._listener.refuse()
        self._desk.change()

    def heal(self, name: str | None = None) -> None:
        """End every fault, or those of one name; what hangs goes on hanging, as a lost packet stays lost."""
        self._faults.clear(None if name is None else canonical(name))
        self._event("healed", {"fault": name or "all"})
        if self._listener is not None and not self._faults.refuses:
            self._listener.resume()
        self._desk.change()

    async def push(
        self,
        webhook_url: str | None = None,
        secret: str | None = None,
        *,
        event: str = "reclaim",
        droplet_id: int | None = None,
        name: str | None = None,
        at: datetime | str | None = None,
        message_id: str | None = None,
    ) -> int:
        """Post one signed message and return the HTTP status; only DigitalOcean pushes.

        Args:
            webhook_url: None: the emulator's own.
            secret: `whsec_…`; None: the emulator's own.
            event: `reclaim` or `cancel`.
            droplet_id: None, and no `name`: this Droplet's.
            name: instead of the id, or beside it.
            at: when the Droplet goes; None: in two hours, or left out of a cancel. Text goes out as it is.
            message_id: None: a new one; the same one again is a replay.

        Raises:
            ConfigError: the cloud does not push, or there is no webhook.
            aiohttp.ClientError, TimeoutError: nobody took it.
        """
        if self._relay is None:
            raise ConfigError(f"{self.name} pushes nothing; its notices are asked for")
        about = {"droplet_id": droplet_id, "name": name}
        return await self._relay.push(
            webhook_url, secret, event=event, about=about, at=at, message_id=message_id, until_taken=False
        )

    def _send(self, event: str, about: Mapping[str, Any], at: datetime | None = None) -> None:
        """Push in the background, until it is taken."""
        if self._relay is None:
            return
        sending = self._relay.push(
            None, None, event=event, about=about, at=at, message_id=None, until_taken=True
        )
        task = asyncio.get_running_loop().create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _event(self, name: str, data: Mapping[str, Any]) -> None:
        if self._tell is not None:
            self._tell(Event(at=self.clock.now(), name=name, provider=self.name, data=data))
