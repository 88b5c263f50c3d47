# SPDX-License-Identifier: Apache-2.0
"""`spotwatch emulate`: a cloud on loopback for a person or a script, with everything that happens as lines.

The cloud itself is `spotwatch.emulator`; nothing is drilled or judged here.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import click

from spotwatch.cli._durations import DURATION
from spotwatch.emulator import FAULTS, SCENARIOS, Emulator, check_scenario, clouds, play, scenarios_of
from spotwatch.errors import ConfigError
from spotwatch.model import Event

_EPILOG = """\b
Examples:
  spotwatch emulate aws --port 1338 --notice-after 10s
  spotwatch emulate azure --scenario withdrawn --scenario plain
  spotwatch emulate gcp --fault clock-skew=-3600 --fault 404:upcoming-maintenance
  spotwatch emulate digitalocean --webhook http://127.0.0.1:9476/webhook/digitalocean --secret-file whsec
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the command line asked for, checked."""

    cloud: str
    host: str
    port: int
    notice_after_seconds: float
    window_seconds: float
    scenarios: tuple[str, ...]
    faults: tuple[Mapping[str, Any], ...]
    webhook_url: str
    secret_file: Path | None
    by_mail: bool
    say: Callable[[Event], None]


@click.command(epilog=_EPILOG)
@click.argument("cloud", required=False, type=click.Choice(clouds()))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; 0: a free one.")
@click.option(
    "--notice-after", type=DURATION, default="30s", show_default=True, help="From the start to the notice."
)
@click.option(
    "--window", type=DURATION, default="120s", show_default=True, help="From the notice to its deadline."
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help="What happens; several are played in turn.  [default: plain]",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME[:SIGNAL][=SECONDS]",
    help="A fault in force from start to end; see --list-scenarios.",
)
@click.option("--list-scenarios", is_flag=True, help="Print scenarios and faults, and exit.")
@click.option("--webhook", "webhook_url", default="", metavar="URL", help="Where DigitalOcean's notices go.")
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the whsec_… secret that signs them.",
)
@click.option("--by-mail", is_flag=True, help="Post DigitalOcean's mail itself, signed by DKIM.")
@click.option("--log", type=click.Choice(["console", "json"]), default="console", show_default=True)
def command(  # noqa: PLR0913 - click hands over every option by name
    *,
    cloud: str | None,
    host: str,
    port: int,
    notice_after: float,
    window: float,
    scenarios: tuple[str, ...],
    faults: tuple[str, ...],
    list_scenarios: bool,
    webhook_url: str,
    secret_file: Path | None,
    by_mail: bool,
    log: Literal["console", "json"],
) -> None:
    """Play CLOUD's metadata service here, give a notice, and show every request.

    The first lines say how to point a daemon at it. It serves until Ctrl-C or SIGTERM.
    """
    if list_scenarios:
        _print_lists(cloud)
        return
    if cloud is None:
        raise click.UsageError(f"which cloud? One of {', '.join(clouds())}.")
    if cloud == "digitalocean" and not (webhook_url and secret_file):
        if scenarios:
            raise click.UsageError("digitalocean pushes its notice: give --webhook and --secret-file")
        click.echo("no --webhook and --secret-file: metadata only, no notice will come", err=True)
    elif not scenarios:
        scenarios = ("plain",)
    for name in scenarios:
        check_scenario(name, cloud)
    plan = _Plan(
        cloud=cloud,
        host=host,
        port=port,
        notice_after_seconds=notice_after,
        window_seconds=window,
        scenarios=scenarios,
        faults=tuple(_read_fault(text) for text in faults),
        webhook_url=webhook_url,
        secret_file=secret_file,
        by_mail=by_mail,
        say=_say_json if log == "json" else _say_text,
    )
    asyncio.run(_serve(plan))


async def _serve(plan: _Plan) -> None:
    """Serve until a signal comes.

    Raises:
        ConfigError: the address is taken or not ours, the secret is none, a fault is unknown.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    cloud = Emulator(
        plan.cloud,
        host=plan.host,
        port=plan.port,
        listener=plan.say,
        webhook_url=plan.webhook_url,
        secret=plan.secret_file.read_text(encoding="utf-8").strip() if plan.secret_file else "",
        by_mail=plan.by_mail,
    )
    for fault in plan.faults:
        cloud.fault(**fault)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(cloud)
        except OSError as error:
            raise ConfigError(f"cannot listen on {plan.host}:{plan.port}: {error.strerror}") from error
        _announce_start(cloud, plan)
        telling = asyncio.create_task(_tell(cloud, plan))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((telling, stopping), return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
            await stopping
        finally:
            for task in (telling, stopping):
                task.cancel()
            await asyncio.gather(telling, stopping, return_exceptions=True)


async def _tell(cloud: Emulator, plan: _Plan) -> None:
    """Play the scenarios in turn, each on a clean stage; leave the last one's notice in force."""
    for number, name in enumerate(plan.scenarios):
        if number:
            cloud.withdraw()
            cloud.heal()
            for fault in plan.faults:
                cloud.fault(**fault)
        _note(cloud, plan, "scenario", {"scenario": name, "what": SCENARIOS[name]})
        await play(
            cloud, name, notice_after_seconds=plan.notice_after_seconds, window_seconds=plan.window_seconds
        )
        _note(cloud, plan, "scenario over", {"scenario": name})


def _announce_start(cloud: Emulator, plan: _Plan) -> None:
    variables = dict(cloud.environment)
    if plan.webhook_url:
        variables["SPOTWATCH_WEBHOOK__LISTEN"] = urlsplit(plan.webhook_url).netloc
        variables["SPOTWATCH_WEBHOOK__SECRET_FILES"] = str(plan.secret_file)
    setting = " ".join(f"{k}={v}" for k, v in variables.items())
    command_line = f"{setting} spotwatch run --provider {plan.cloud}"
    data = {"base_url": cloud.base_url, "environment": variables, "command": command_line}
    _note(cloud, plan, "listening", data)


def _note(cloud: Emulator, plan: _Plan, name: str, data: Mapping[str, Any]) -> None:
    plan.say(Event(at=cloud.clock.now(), name=name, provider=plan.cloud, data=data))


def _say_json(event: Event) -> None:
    click.echo(json.dumps(event.to_json()))


def _say_text(event: Event) -> None:
    data = event.data
    at = event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    match event.name:
        case "listening":
            click.echo(f"{event.provider} is played on {data['base_url']}; point a daemon at it with")
            click.echo(f"  {data['command']}")
        case "request":
            fault = f"  ({data['fault']})" if "fault" in data else ""
            click.echo(f"{at}  {data['method']:<4} {data['path']}  {data['status'] or 'no answer'}{fault}")
        case _:
            row = Event(at=event.at, name=event.name, data=data).to_json()
            told = "  ".join(f"{k}={v}" for k, v in row.items() if k not in ("at", "event") and v is not None)
            click.echo(f"{at}  {event.name.upper()}  {told}")


def _read_fault(text: str) -> Mapping[str, Any]:
    """Return the arguments of `Emulator.fault` in `NAME[:SIGNAL][=SECONDS]`."""
    rest, equals, number = text.partition("=")
    name, colon, page = rest.partition(":")
    try:
        seconds = float(number) if equals else None
    except ValueError:
        raise click.UsageError(f"--fault {text}: {number!r} is no number of seconds") from None
    return {"name": name, "signal": page if colon else None, "seconds": seconds}


def _print_lists(cloud: str | None) -> None:
    names = tuple(SCENARIOS) if cloud is None else scenarios_of(cloud)
    click.echo("scenarios:")
    for name in names:
        where = ", ".join(c for c in clouds() if name in scenarios_of(c))
        click.echo(f"  {name:<26}{SCENARIOS[name]} [{where}]")
    click.echo("faults:")
    for name, meaning in FAULTS.items():
        click.echo(f"  {name:<26}{meaning}")
