# SPDX-License-Identifier: Apache-2.0
"""Which cloud this is, whether each of its signals answers, and whether it says who we are.

Each provider is asked once, as the daemon would, against the real endpoint, and keeps nothing. What a failure
means is the provider's own knowledge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from spotwatch import providers
from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.machine import Machine
from spotwatch.config import Webhook
from spotwatch.detection import detect
from spotwatch.errors import ConfigError, Denied, Malformed, NotHere, ProviderError
from spotwatch.model import Answer, Notice, to_rfc3339
from spotwatch.provider_making import make_provider
from spotwatch.providers import Identified, Provider, Windowed
from spotwatch.providers.file import ENDS_AT

PROBE_SECONDS = 6.0
"""More than any provider takes for one poll; the minutes of Azure's very first one are not waited for."""
_LEARN_SECONDS = 1.5
_NO_CLOUD_MEND = (
    "on a laptop this is as it should be; on a cloud, name it with --provider and run the check again: "
    "it then says why the metadata service does not answer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """A moment as a server gave it, and ours before it was asked and after it answered."""

    asked_at: datetime
    server_at: datetime
    answered_at: datetime


@dataclass(slots=True, kw_only=True)
class Clouds:
    """What asking all of them gave."""

    which: list[Finding] = field(default_factory=list)
    signals: list[Finding] = field(default_factory=list)
    identities: list[Finding] = field(default_factory=list)
    dates: list[Dated] = field(default_factory=list)
    windows: dict[str, float] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """Return all lines in their order."""
        return [*self.which, *self.signals, *self.identities]


async def ask_clouds(machine: Machine) -> Clouds:
    """Return what all providers say that the daemon would watch; within ten seconds."""
    clouds = Clouds()
    settings = machine.settings
    named = [name for name in dict.fromkeys(settings.providers) if name not in ("auto", "file")]
    found: list[str] = []
    if "auto" in settings.providers:
        others = [name for name in providers.names() if name not in (*named, "file")]
        candidates = _make_all(machine, others, clouds)
        found = [provider.name for provider in await detect(candidates, say=lambda _: None)]
        clouds.which += _recognised(found, named)
    elif not named:
        clouds.which.append(skip("cloud", "none is watched, as `providers` says: only notices by hand"))
    everyone = _make_all(machine, [*named, *found, "file"], clouds)
    if machine.is_strange:
        # What is pushed, and what is written by hand, comes to the daemon alone.
        everyone = [one for one in everyone if one.absence_withdraws and one.name != "file"]
    probes, here = await asyncio.gather(
        asyncio.gather(*(_probe(provider, machine) for provider in everyone)),
        _are_here(machine, named),
    )
    for provider, probe in zip(everyone, probes, strict=True):
        clouds.signals += probe.signals
        clouds.identities += probe.identity
        if provider.name != "file" and probe.dated is not None:
            clouds.dates.append(probe.dated)
        if isinstance(provider, Windowed):
            clouds.windows[provider.name] = provider.window_seconds
        if provider.name in named:
            clouds.which.append(_named(provider.name, is_here=provider.name in here, probe=probe))
    return clouds


@dataclass(slots=True, kw_only=True)
class _Probe:
    signals: list[Finding]
    identity: list[Finding] = field(default_factory=list)
    dated: Dated | None = None
    has_answered: bool = False
    """The cloud itself did: it told who we are, or one of its signals."""


async def _probe(provider: Provider, machine: Machine) -> _Probe:
    """Ask `provider` once, within its limit, whatever happens."""
    names = [f"signal.{provider.name}.{signal}" for signal in provider.signals]
    try:
        async with asyncio.timeout(PROBE_SECONDS), provider:
            asked_at = machine.clock.now()
            answer, identity = await asyncio.gather(_notices(provider), _identity(provider))
            answered_at = machine.clock.now()
    except TimeoutError:
        mend = _mend(provider.name, None)
        return _Probe(signals=[fail(name, f"no answer within {PROBE_SECONDS:g} s", mend) for name in names])
    except Exception as error:  # noqa: BLE001 - a provider of somebody else's may raise anything
        said = f"the provider broke: {type(error).__name__}: {error}"
        return _Probe(signals=[fail(name, said, "update it, or report it to its author") for name in names])
    dated = None
    if answer.server_at is not None:
        dated = Dated(asked_at=asked_at, server_at=answer.server_at, answered_at=answered_at)
    has_identity = any(finding.mend == "" for finding in identity)
    return _Probe(
        signals=list(_signals(provider, answer)),
        identity=identity,
        dated=dated,
        has_answered=has_identity or (not identity and bool(answer.answered)),
    )


async def _notices(provider: Provider) -> Answer:
    if not provider.absence_withdraws:
        # A push source learns by itself who it is, and may then find out that it was told otherwise.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEARN_SECONDS):
                await provider.wait()
    return await provider.notices()


async def _identity(provider: Provider) -> list[Finding]:
    if not isinstance(provider, Identified):
        return []
    name = f"identity.{provider.name}"
    try:
        return [ok(name, await provider.identity())]
    except ProviderError as error:
        return [fail(name, f"{error.result}: {error}", error.mend or _mend(provider.name, error))]


def _signals(provider: Provider, answer: Answer) -> Iterator[Finding]:
    is_silent = not answer.answered and not answer.failed
    for signal in provider.signals:
        if (provider.name, signal) == ("file", ENDS_AT):
            continue  # told by the question about the known end
        name = f"signal.{provider.name}.{signal}"
        error = answer.failed.get(signal)
        if error is not None:
            yield fail(name, f"{error.result}: {error}", error.mend or _mend(provider.name, error))
        elif signal in answer.answered:
            yield _good(name, [notice for notice in answer.notices if notice.signal == signal])
        elif is_silent:
            mend = "a first request may take two minutes while the service is enabled: run the check again"
            yield warn(name, "no answer yet, and no error", mend)
        else:
            yield skip(name, "not offered on this machine")


def _good(name: str, notices: Sequence[Notice]) -> Finding:
    if not notices:
        return ok(name, "answers; no notice is in force")
    told = ", ".join(
        f"{notice.kind.value} {'without a time' if notice.deadline is None else to_rfc3339(notice.deadline)}"
        for notice in notices
    )
    return warn(
        name, f"answers; a notice is in force: {told}", "nothing to mend; `spotwatch status` tells more"
    )


def _mend(name: str, error: ProviderError | None) -> str:
    if name == "file":
        return "look at the files in the runtime directory's notices/"
    if isinstance(error, Denied):
        return (
            "allow it in the instance's metadata options, and see that no proxy or firewall answers instead"
        )
    if isinstance(error, Malformed):
        return (
            "something else answers in the cloud's place: look for a proxy or a captive page, "
            f"and at provider.{name}.endpoint"
        )
    if isinstance(error, NotHere):
        return f"this machine is not on {name}: take it out of `providers`"
    return (
        f"see that {name}'s metadata service is reachable from here (firewall, network namespace, routes), "
        f"and look at provider.{name}.endpoint"
    )


def _recognised(found: Sequence[str], named: Sequence[str]) -> list[Finding]:
    if len(found) > 1:
        mend = "name the right one in `providers`; an emulator or a proxy may answer for the other"
        return [warn("cloud", f"{' and '.join(found)} both seem to be here", mend)]
    if found:
        return [ok("cloud", f"{found[0]}, recognised by itself")]
    if named:
        return []
    return [warn("cloud", "none was recognised: only notices by hand are watched", _NO_CLOUD_MEND)]


def _named(name: str, *, is_here: bool, probe: _Probe) -> Finding:
    if is_here:
        return ok("cloud", f"{name}, named in `providers` and recognised")
    if probe.has_answered:
        return ok("cloud", f"{name}, named in `providers`; its metadata service answers")
    return fail(
        "cloud",
        f"{name} is named in `providers`, but nothing here shows that this machine is on {name}",
        "leave `providers` out, so that the cloud is recognised, or mend what its signals below complain of",
    )


async def _are_here(machine: Machine, named: Sequence[str]) -> set[str]:
    """Return which of the named ones recognise this machine."""
    candidates = _make_all(machine, named, Clouds())
    return {provider.name for provider in await detect(candidates, say=lambda _: None)}


def _make_all(machine: Machine, names: Sequence[str], clouds: Clouds) -> list[Provider]:
    """Return these providers, which will keep nothing; one that cannot be made leaves a line instead."""
    made: list[Provider] = []
    for name in names:
        try:
            made.append(_make(machine, name))
        except ConfigError as error:
            mend = "mend it, or take the provider out of `providers`: the daemon does not start with it"
            clouds.which += [fail("cloud", f"{name}: {line}", mend) for line in error.problems]
    return made


def _make(machine: Machine, name: str) -> Provider:
    settings = machine.settings
    try:
        return make_provider(settings, name, machine.clock, state_dir=None)
    except ConfigError:
        # A secret that is none is told by the question about the webhook.
        return make_provider(replace(settings, webhook=Webhook()), name, machine.clock, state_dir=None)
