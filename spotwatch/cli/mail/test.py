# SPDX-License-Identifier: Apache-2.0
"""`spotwatch mail test`: what this mail would do here, and why, with nothing done.

It judges as the daemon does for a service that hands over the mail as it received it. Nothing is kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from spotwatch.cli._options import Options, load_settings
from spotwatch.config_layers import DEFAULT_PATH
from spotwatch.errors import Malformed, ProviderError
from spotwatch.masking import escape
from spotwatch.model import to_rfc3339

if TYPE_CHECKING:
    from spotwatch.config import Settings
    from spotwatch.mail.desk import Keys
    from spotwatch.mail.keys import KeyAnswer
    from spotwatch.mail.model import Droplet, Judgement

MAX_READ_BYTES = 1024 * 1024
"""More than any mail that is looked at, so that a larger one is refused by its size."""
UNKNOWN_ID = 2**53
"""Stands for a Droplet's number that is not known: the highest that there may be, which no mail names."""
_METADATA_SECONDS = 1.0
_LIMIT_SECONDS = 15.0
_FROM_LINE = b"From "
_EPILOG = """\b
Examples:
  spotwatch mail test reclaim.eml                    on the Droplet itself
  spotwatch mail test - --droplet-id 512345678 --name spot-trainer-01 < reclaim.eml
  spotwatch mail test reclaim.eml --no-dns --json | jq '.judgements[].evidence'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    droplet_id: int | None
    names: tuple[str, ...]
    addresses: tuple[str, ...]


def _read_addresses(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    del context, parameter
    try:
        return tuple(str(ipaddress.ip_address(text)) for text in texts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class _MailFile(click.File):
    """A regular file, or standard input: a pipe by name, or a device, could keep one waiting for ever."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the open file."""
        if isinstance(value, str) and value != "-" and Path(value).exists() and not Path(value).is_file():
            self.fail(f"{escape(value)!r} is no file; what comes through a pipe is given as -", param, ctx)
        # Started with a closed one, Python has none.
        if value == "-" and sys.stdin is None:
            self.fail("standard input is closed; give the mail as a file, or by < FILE.eml", param, ctx)
        return super().convert(value, param, ctx)


@click.command(name="test", epilog=_EPILOG)
@click.argument("file", type=_MailFile("rb"), metavar="FILE|-")
@click.option(
    "--droplet-id", type=click.IntRange(1, UNKNOWN_ID), metavar="N",
    help="Judge for this Droplet.  [default: the configuration's, else this machine]",
)  # fmt: skip
@click.option("--name", "names", multiple=True, metavar="NAME", help="A name that is its alone; repeatable.")
@click.option(
    "--address", "addresses", multiple=True, metavar="IP", callback=_read_addresses,
    help="An address of it; repeatable.",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help=f"Read this TOML file instead of {DEFAULT_PATH}.",
)  # fmt: skip
@click.option("--no-dns", is_flag=True, help="Ask no name server: no signature can be checked then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    file: BinaryIO,
    config: Path | None,
    no_dns: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what a mail would do: what was recognised, what is proven, what follows and why.

    Exits 0 when the trainer would be told something, or a notice would end; 1 when nothing would follow; 2 on
    wrong usage or configuration.
    """
    settings = load_settings(Options(config=config)).settings
    try:
        raw = file.read(MAX_READ_BYTES)
    except OSError as error:
        raise click.UsageError(f"the mail cannot be read: {error}") from error
    if raw.startswith(_FROM_LINE):
        # A mailbox file's own line, which is no header.
        raw = raw.partition(b"\n")[2]
    try:
        judgements, notes = asyncio.run(_judge(raw, settings, _Given(**given), has_dns=not no_dns))
    except Malformed as error:
        _show({"version": 1, "judgements": [], "notes": [str(error)]}, [str(error)], as_json=as_json)
        context.exit(1)
    rows = [_row(judgement) for judgement in judgements]
    lines = [*notes, *_lines(judgements)]
    _show({"version": 1, "judgements": rows, "notes": list(notes)}, lines, as_json=as_json)
    context.exit(0 if any(one.event != "none" for one in judgements) else 1)


async def _judge(
    raw: bytes, settings: Settings, given: _Given, *, has_dns: bool
) -> tuple[tuple[Judgement, ...], Sequence[str]]:
    # Imported late: `--help` needs none of it.
    from spotwatch.clock import SystemClock  # noqa: PLC0415
    from spotwatch.mail.desk import MailDesk  # noqa: PLC0415
    from spotwatch.mail.keys import KeyCache, SystemResolver  # noqa: PLC0415
    from spotwatch.mail.model import Delivery  # noqa: PLC0415
    from spotwatch.mail.patterns import default_patterns, load_patterns  # noqa: PLC0415

    clock, rules = SystemClock(), settings.mail
    now = clock.now()
    keys: Keys = KeyCache(SystemResolver(rules.resolvers), clock) if has_dns else _NoKeys()
    desk = MailDesk(
        rules,
        load_patterns(Path(rules.patterns_file)) if rules.patterns_file else default_patterns(),
        keys,
        trust_relay=settings.webhook.trust_relay,
        limit_seconds=_LIMIT_SECONDS,
    )
    delivery = Delivery(
        service="mail test",
        raw=raw,
        is_original=True,
        covers_body=False,
        replay_id="",
        signed_at=None,
        received_at=now,
    )
    droplets = await _find_droplets(settings, given)
    return await desk.consider(delivery, droplets, now), tuple(_notes(droplets))


async def _find_droplets(settings: Settings, given: _Given) -> tuple[Droplet, ...]:
    """Return the Droplet to judge for: as the command line says, the configuration, the metadata service."""
    from spotwatch.mail.model import Droplet  # noqa: PLC0415 - as above
    from spotwatch.providers._do_config import Config  # noqa: PLC0415
    from spotwatch.providers._do_identity import ENDPOINT, ask_identity  # noqa: PLC0415
    from spotwatch.providers._metadata import MetadataClient  # noqa: PLC0415

    config = settings.provider.get("digitalocean", Config())
    names = frozenset(name.strip().casefold() for name in (*config.names, *given.names))
    droplet_id, hostname = given.droplet_id or config.droplet_id, ""
    addresses = frozenset(given.addresses)
    if given.droplet_id is None:
        async with MetadataClient(config.endpoint or ENDPOINT, timeout_seconds=_METADATA_SECONDS) as client:
            try:
                found = await ask_identity(client)
            except ProviderError:
                found = None
        if found is not None and droplet_id in (0, found.droplet_id):
            droplet_id, hostname = found.droplet_id, found.hostname
            addresses |= found.addresses
    if not (droplet_id or names or addresses):
        return ()
    return (
        Droplet(droplet_id=droplet_id or UNKNOWN_ID, names=names, hostname=hostname, addresses=addresses),
    )


def _notes(droplets: Sequence[Droplet]) -> Iterator[str]:
    if not droplets:
        yield "note: which Droplet this is, is not known, so no mail can name it; give --droplet-id or --name"
    elif droplets[0].droplet_id == UNKNOWN_ID:
        yield f"note: the Droplet's number is not known here; {UNKNOWN_ID} stands for it"


class _NoKeys:
    """Keys of nobody."""

    async def fetch(self, names: Sequence[str]) -> Mapping[str, KeyAnswer]:
        """Return none."""
        del names
        return {}


def _lines(judgements: Sequence[Judgement]) -> Iterator[str]:
    for number, judgement in enumerate(judgements):
        if number:
            yield ""
        yield from judgement.lines or (judgement.detail,)


def _row(judgement: Judgement) -> dict[str, Any]:
    return {
        "event": judgement.event,
        "evidence": judgement.evidence.value,
        "result": judgement.result,
        "droplet_id": None if judgement.droplet is None else judgement.droplet.droplet_id,
        "at": None if judgement.at is None else to_rfc3339(judgement.at),
        "signed_at": to_rfc3339(judgement.signed_at),
        "message_key": judgement.message_key,
        "is_temporary": judgement.is_temporary,
        "is_kept": judgement.is_kept,
        "detail": judgement.detail,
        "lines": list(judgement.lines),
    }


def _show(document: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    for line in lines:
        click.echo(escape(line, limit=500))
