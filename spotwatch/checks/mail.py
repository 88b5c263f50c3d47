# SPDX-License-Identifier: Apache-2.0
"""Whether a reclaim mail would be heard, proven and understood: services, patterns, DNS, and names.

No mail is sent. What the mailbox answers is told with the other signals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spotwatch.checks.finding import Finding, fail, ok, warn
from spotwatch.checks.limits import told
from spotwatch.checks.machine import Machine
from spotwatch.config import Mail, Settings
from spotwatch.errors import ConfigError
from spotwatch.mail.extra import require
from spotwatch.mail.keys import KeyState, SystemResolver
from spotwatch.provider_making import make_provider

_NAME = "digitalocean"
_EXTRA = ("dkim", "dns.asyncresolver", "cryptography")
# Asked only to see whether DNS answers; it need not be there.
_PROBE = "_dmarc"


async def ask_mail(machine: Machine) -> list[Finding]:
    """Return the lines about mail; none where nothing of it is configured."""
    settings = machine.settings
    config = settings.provider.get(_NAME)
    has_mailbox = bool(getattr(config, "mailbox", ""))
    hears_mail = bool(settings.inbound or settings.mail != Mail())
    if not (hears_mail or has_mailbox):
        return []
    missing = await told(judge_extra)
    if not hears_mail or missing:
        return missing
    findings = await told(judge_services, machine)
    findings += judge_evidence(settings)
    findings.append(await ask_dns(settings.mail))
    return findings


def judge_extra() -> Iterator[Finding]:
    """Yield each part of `spotwatch[mail]` that is missing."""
    for module in _EXTRA:
        try:
            require(module)
        except ConfigError as error:
            found, _, mend = str(error).partition("; ")
            yield fail("mail.extra", found, mend)


def judge_services(machine: Machine) -> Iterator[Finding]:
    """Yield whether each service can be heard, and the patterns be read."""
    settings = machine.settings
    names = ", ".join(sorted(settings.inbound)) or "standard, with the webhook's secrets"
    if not settings.webhook.listen:
        mend = "set webhook.listen, so that a service can post; or leave it to `spotwatch relay`"
        yield fail("mail.services", f"mail is set up ({names}), but webhook.listen is empty", mend)
        return
    # What is wrong with a mailbox is told with the cloud.
    config = settings.provider.get(_NAME)
    providers = {} if config is None else {_NAME: replace(config, mailbox="", mailbox_keys=())}
    try:
        make_provider(
            replace(settings, provider=providers),
            _NAME,
            machine.clock,
            state_dir=None,
            environ=machine.environ,
        )
    except ConfigError as error:
        for problem in error.problems:
            found, _, mend = problem.partition("; ")
            yield fail("mail.services", found, mend or "mend it: the daemon does not start with it")
        return
    yield ok("mail.services", f"{names}: secrets and patterns can be read")


def judge_evidence(settings: Settings) -> Iterator[Finding]:
    """Yield what a genuine mail would lack to stop the trainer."""
    rules, config = settings.mail, settings.provider.get(_NAME)
    if rules.account_addresses:
        yield ok("mail.account_addresses", ", ".join(rules.account_addresses))
    else:
        yield warn(
            "mail.account_addresses",
            "is empty, so that a mail may only flush, never stop: a stranger may name a Droplet as yours is",
            "set it to the addresses that DigitalOcean writes to",
        )
    if settings.webhook.trust_relay:
        yield warn(
            "webhook.trust_relay",
            "is on, so that a mail may stop the trainer without DKIM: whoever can write to the mailbox can "
            "write DigitalOcean into From",
            "leave it out, unless your mail server checks DKIM or DMARC before it forwards",
        )
    names = getattr(config, "names", ())
    if names:
        yield ok("mail.names", f"{', '.join(names)}: this Droplet's alone")
    elif rules.single_droplet_account:
        yield ok("mail.names", "none is needed: mail.single_droplet_account")
    else:
        yield warn(
            "mail.names",
            "no name is this Droplet's alone: a mail that calls it by its name, as DigitalOcean's "
            "maintenance mails do, may only flush",
            "set provider.digitalocean.names, if no other Droplet of the account is called the same",
        )


async def ask_dns(rules: Mail) -> Finding:
    """Return whether name servers answer for the domains whose signature proves a mail."""
    servers = ", ".join(rules.resolvers) or "this machine's name servers"
    resolver = SystemResolver(rules.resolvers)
    for domain in rules.trusted_domains:
        answer = await resolver.resolve(f"{_PROBE}.{domain}")
        if answer.state is KeyState.NO_ANSWER:
            return warn(
                "mail.dns",
                f"{servers}: {answer.why} for {domain}; while it lasts, mail may only flush",
                "see that DNS is reachable from here, or set mail.resolvers",
            )
    return ok("mail.dns", f"{servers}: answer")
