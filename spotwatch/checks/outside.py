# SPDX-License-Identifier: Apache-2.0
"""Everybody outside: hooks that are run, receivers that are told, and those who may push a notice to us.

Nothing is run and nobody is told. No secret and no receiver's address is ever shown.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address

import aiohttp

from spotwatch.actions.announce import AnnounceTeller
from spotwatch.checks.finding import Finding, fail, ok, warn
from spotwatch.checks.limits import in_thread, told
from spotwatch.checks.machine import Machine
from spotwatch.config import Announce, Hook, Webhook
from spotwatch.config_check import Listen, parse_listen
from spotwatch.config_secrets import read_secret, read_webhook_secrets
from spotwatch.errors import ConfigError
from spotwatch.webhooks import parse_secret

_HTTP_SECONDS = 4.0


def judge_hooks(hook: Hook) -> Iterator[Finding]:
    """Yield whether each hook's command is there."""
    for occasion in ("notice", "saved", "missed", "survived"):
        argv: tuple[str, ...] = getattr(hook, f"on_{occasion}")
        if not argv:
            continue
        name = f"hook.on_{occasion}"
        found = shutil.which(argv[0])
        if found is None:
            yield fail(
                name, f"{argv[0]!r} is no command that can be run", "give its full path, and chmod +x it"
            )
        else:
            yield ok(name, found)


def judge_announce(number: int, announce: Announce) -> Iterator[Finding]:
    """Yield whether a receiver's address, template and secret are in order."""
    name = f"announce.{number}"
    mend = "mend announce in the configuration"
    problems: list[str] = []
    secret = ""
    if announce.secret_file:
        try:
            secret = read_secret(announce.secret_file)
        except ConfigError as error:
            problems += error.problems
    try:
        AnnounceTeller(announce)
    except ConfigError as error:
        problems += error.problems
    if secret and not announce.url:
        try:
            AnnounceTeller(replace(announce, url=secret, template=""))
        except ConfigError:
            problems.append(f"{announce.secret_file} holds no http(s) URL")
    if problems:
        yield from (fail(name, problem, mend) for problem in problems)
    else:
        yield ok(name, f"would be told of {', '.join(announce.on) or 'nothing'}; it was not tried")


async def ask_outside(machine: Machine) -> list[Finding]:
    """Return the lines about the webhook, hooks and receivers."""
    settings = machine.settings
    findings = await _ask_webhook(settings.webhook, is_running=await machine.daemon() is not None)
    findings += await told(judge_hooks, settings.hook)
    for number, announce in enumerate(settings.announce):
        findings += await told(judge_announce, number, announce)
    return findings


async def _ask_webhook(webhook: Webhook, *, is_running: bool) -> list[Finding]:
    address = parse_listen(webhook.listen)
    if address is None:
        return []
    findings = await told(judge_secrets, webhook)
    if is_running:
        findings.append(await _ask_listener(webhook.listen, address))
    else:
        findings.append(await in_thread(_judge_port, webhook.listen, address))
    if _is_loopback(address.host):
        findings.append(_judge_reach(webhook))
    return findings


def _judge_reach(webhook: Webhook) -> Finding:
    """Return who can push to a listener that only this machine reaches."""
    name, said = "webhook.reach", f"webhook.listen = {webhook.listen}"
    proxies = [proxy for proxy in webhook.trusted_proxies if _is_loopback(proxy)]
    if proxies:
        by = f"what a proxy here ({', '.join(proxies)}) hands on; senders need its address, not this one"
        return ok(name, f"{said}: {by}")
    if webhook.trusted_proxies:
        others = ", ".join(webhook.trusted_proxies)
        mend = "listen on an address that the proxy reaches, or name the one that it comes from"
        return warn(
            name, f"{said}: only this machine can push, and webhook.trusted_proxies is {others}", mend
        )
    mend = (
        "listen on an address that the sender reaches, or have a proxy here hand requests on and name it in"
    )
    return warn(name, f"{said}: only this machine can push", f"{mend} webhook.trusted_proxies")


def judge_secrets(webhook: Webhook) -> Iterator[Finding]:
    """Yield whether every secret can be read and is one."""
    name = "webhook.secret"
    try:
        secrets = read_webhook_secrets(webhook)
    except ConfigError as error:
        yield from (fail(name, problem, "let the daemon's user read it") for problem in error.problems)
        return
    good = 0
    for secret in secrets:
        try:
            parse_secret(secret)
        except ConfigError as error:
            found, _, mend = str(error).partition("; ")
            yield fail(name, found, mend)
        else:
            good += 1
    if secrets and good == len(secrets):
        yield ok(name, f"{good} can be read")


async def _ask_listener(listen: str, address: Listen) -> Finding:
    name = "webhook"
    host = _reachable(address.host)
    url = (
        f"http://[{host}]:{address.port}/webhook" if ":" in host else f"http://{host}:{address.port}/webhook"
    )
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_HTTP_SECONDS), trust_env=False
            ) as session,
            session.get(url, allow_redirects=False),
        ):
            return ok(name, f"{listen} answers")
    except TimeoutError:
        mend = "restart the daemon, which may hang; if the line stays, set webhook.listen to a free port"
        return fail(name, f"{listen} does not answer within {_HTTP_SECONDS:g} s: no push arrives", mend)
    except (aiohttp.ClientError, OSError) as error:
        mend = "see journalctl -u spotwatch: the port may be taken; set webhook.listen to a free one"
        return fail(name, f"{listen} does not answer ({type(error).__name__}): no push arrives", mend)


def _judge_port(listen: str, address: Listen) -> Finding:
    """Return whether the daemon could listen there; the socket is closed before anyone could connect."""
    name = "webhook"
    host = address.host or "0.0.0.0"  # noqa: S104 - what the daemon would do
    try:
        family = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, address.port))
    except OSError as error:
        mend = "end what listens there, or set webhook.listen to a free port of this machine"
        return fail(name, f"cannot listen on {listen}: {error.strerror or error}", mend)
    return ok(name, f"{listen} is free")


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - compared, not bound


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
