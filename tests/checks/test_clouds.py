# SPDX-License-Identifier: Apache-2.0
"""Each signal asked once of a real server: what it says, what it complains of, and what is to be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest

from spotwatch import providers
from spotwatch.checks import Result, has_failed
from spotwatch.checks.clouds import Dated
from spotwatch.checks.times import ask_timedated, judge_clock, offset_seconds
from spotwatch.clock import SystemClock
from spotwatch.emulator import Emulator
from spotwatch.model import Answer
from spotwatch.testing import EPOCH
from tests.checks.bench import Bench, free_port, named

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def config(cloud: Emulator, more: str = "") -> str:
    """Return the configuration that names the cloud played and where it is."""
    return f'providers = ["{cloud.name}"]\n[provider.{cloud.name}]\nendpoint = "{cloud.base_url}"\n{more}'


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
async def test_a_cloud_that_answers_is_fine(name: str, bench: Bench) -> None:
    """Every signal is asked, the machine is named, the clock agrees, and the window is told."""
    async with Emulator(name) as cloud:
        findings = await bench.check(config(cloud))
    assert not has_failed(findings), findings
    signals = {line.name: line.result for line in findings if line.name.startswith(f"signal.{name}.")}
    expected = providers.load(name)(providers.load(name).config_class(), _context(bench)).signals
    assert set(signals) == {f"signal.{name}.{signal}" for signal in expected}
    assert set(signals.values()) <= {Result.OK, Result.SKIP}
    assert Result.OK in signals.values()
    assert named(findings, f"identity.{name}")[0].found == cloud.identity
    assert named(findings, "clock")[0].result is Result.OK
    assert named(findings, f"window.{name}")[0].result in (Result.OK, Result.WARN)


def _context(bench: Bench) -> providers.Context:
    return providers.Context(clock=SystemClock(), runtime_dir=bench.runtime_dir)


async def test_a_droplet_with_a_secret_is_fine(bench: Bench) -> None:
    """The inbox is ready, and asking changed nothing in the state directory."""
    secret = bench.home / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    more = f'[webhook]\nlisten = "0.0.0.0:{free_port()}"\nsecret_files = ["{secret}"]\n'
    bench.state_dir.mkdir()
    async with Emulator("digitalocean") as cloud:
        findings = await bench.check(config(cloud, more))
    assert not has_failed(findings), findings
    assert named(findings, "identity.digitalocean")[0].found == cloud.identity
    assert named(findings, "window.digitalocean")[0].result is Result.OK
    assert list(bench.state_dir.iterdir()) == []


async def test_a_notice_in_force_is_told(bench: Bench) -> None:
    """A machine that is being taken back is not called fine without a word."""
    async with Emulator("aws") as cloud:
        cloud.announce(100)
        findings = await bench.check(config(cloud))
    (line,) = named(findings, "signal.aws.instance-action")
    assert line.result is Result.WARN
    assert "a notice is in force: reclaim 20" in line.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something wrong with a cloud's answers, and the line that tells of it."""

    cloud: str
    fault: tuple[Any, ...] = ()
    knobs: tuple[tuple[str, Any], ...] = ()
    more: str = ""
    name: str
    result: str = "fail"
    found: str
    mend: str


TROUBLES = {
    "off": Trouble(
        cloud="aws", fault=("403",), name="signal.aws.instance-action", found="denied", mend="switch it on"
    ),
    "captive": Trouble(
        cloud="aws", fault=("html",), name="signal.aws.rebalance", found="malformed", mend="captive page"
    ),
    "server error": Trouble(
        cloud="aws", fault=("500",), name="signal.aws.asg", found="unavailable", mend="is reachable from here"
    ),
    "one signal": Trouble(
        cloud="aws", fault=("wrong-type", "scheduled-events"), name="signal.aws.scheduled-events",
        found="malformed", mend="provider.aws.endpoint",
    ),
    "nameless": Trouble(
        cloud="aws", fault=("empty", "identity"), name="identity.aws", found="is no id",
        mend="something else answers",
    ),
    "gke": Trouble(
        cloud="gcp", knobs=(("gke", True),), name="signal.gcp.preempted", found="unavailable",
        mend="GKE hides this key",
    ),
    "foreign": Trouble(
        cloud="gcp", fault=("html",), name="identity.gcp", found="not from Google's",
        mend="GCE_METADATA_HOST",
    ),
    "no name": Trouble(
        cloud="azure", fault=("404", "identity"), name="signal.azure.scheduled-events", found="404",
        mend="set resource_name",
    ),
    "not enabled": Trouble(
        cloud="azure", knobs=(("first_call_seconds", 119),), name="signal.azure.scheduled-events",
        result="warn", found="no answer yet", mend="two minutes",
    ),
    "no secret": Trouble(
        cloud="digitalocean", name="signal.digitalocean.webhook", found="no webhook secret",
        mend="set webhook.listen",
    ),
    "copied image": Trouble(
        cloud="digitalocean",
        more=f'droplet_id = 7\n[webhook]\nlisten = "127.0.0.1:0"\nsecret = "{SECRET}"\n',
        name="signal.digitalocean.webhook", found="the metadata service says", mend="remove the setting",
    ),
    "a little off": Trouble(
        cloud="aws", fault=("clock-skew", None, None, 10.0), name="clock", result="warn",
        found="behind the cloud's", mend="timedatectl set-ntp",
    ),
    "far off": Trouble(
        cloud="aws", fault=("clock-skew", None, None, -90.0), name="clock", found="ahead of the cloud's",
        mend="chronyc makestep",
    ),
    "slow saves": Trouble(
        cloud="aws", more="[policy]\nsave_seconds = 200\n", name="window.aws", result="warn",
        found="120 s at least; a save may take 200 s", mend="save often",
    ),
    "tight": Trouble(
        cloud="azure", more="[policy]\nsave_seconds = 20\n", name="window.azure", result="warn",
        found="less than the safety", mend="save faster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", TROUBLES.values(), ids=TROUBLES)
async def test_trouble_is_named_and_mended(one: Trouble, bench: Bench) -> None:
    """The provider's own words and advice arrive, and everything else is asked all the same."""
    async with Emulator(one.cloud, **dict(one.knobs)) as cloud:
        if one.fault:
            seconds = one.fault[3] if len(one.fault) > 3 else None
            cloud.fault(*one.fault[:3], seconds=seconds)
        findings = await bench.check(config(cloud, one.more))
    (line,) = named(findings, one.name)
    assert (line.result, one.found in line.found, one.mend in line.mend) == (one.result, True, True), line
    assert named(findings, "runtime_dir")


async def test_a_known_end_is_no_notice_to_worry_about(bench: Bench) -> None:
    """What the user configured is told once, and is fine while it is to come."""
    findings = await bench.check('[policy]\nends_at = "2099-01-01T00:00:00Z"\n')
    (line,) = [line for line in findings if "ends_at" in line.name]
    assert (line.name, line.result) == ("ends_at", Result.OK)


async def test_silence_in_a_container_may_be_the_hop_limit(bench: Bench) -> None:
    """The one setting that hides EC2's metadata from containers is named."""
    bench.patch("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    async with Emulator("aws") as cloud:
        cloud.fault("hang")
        findings = await bench.check(config(cloud))
        (line,) = named(findings, "signal.aws.instance-action")
        assert line.result is Result.FAIL
        assert "--http-put-response-hop-limit 2" in line.mend
        (line,) = named(findings, "cloud")
        assert "nothing here shows that this machine is on aws" in line.found
        cloud.heal()


async def test_named_but_nobody_there(bench: Bench) -> None:
    """A cloud that is named and does not answer fails by every one of its signals, and by name."""
    toml = f'providers = ["gcp"]\n[provider.gcp]\nendpoint = "http://127.0.0.1:{free_port()}"\n'
    findings = await bench.check(toml)
    assert [line.result for line in findings if line.name.startswith("signal.gcp.")] == [Result.FAIL] * 3
    (line,) = named(findings, "cloud")
    assert (line.result, "take" in line.mend or "leave" in line.mend) == (Result.FAIL, True)


async def test_address_in_the_environment_that_is_none(bench: Bench) -> None:
    """A provider with which the daemon would not start is a line, not a crash."""
    bench.patch("AWS_EC2_METADATA_SERVICE_ENDPOINT", "nowhere")
    findings = await bench.check('providers = ["aws"]\n')
    lines = named(findings, "cloud")
    assert [line for line in lines if "AWS_EC2_METADATA_SERVICE_ENDPOINT" in line.found], lines
    assert has_failed(findings)


async def test_detection_says_what_it_found(bench: Bench) -> None:
    """Without a name the cloud is recognised by its answer."""
    async with Emulator("aws") as cloud:
        bench.patch("AWS_EC2_METADATA_SERVICE_ENDPOINT", cloud.base_url)
        bench.patch("GCE_METADATA_HOST", f"127.0.0.1:{free_port()}")
        nowhere = f'endpoint = "http://127.0.0.1:{free_port()}"\n'
        rest = "".join(f"[provider.{name}]\n{nowhere}" for name in ("azure", "digitalocean"))
        findings = await bench.check(f'providers = ["auto"]\n{rest}')
        (line,) = named(findings, "cloud")
        assert (line.result, line.found) == (Result.OK, "aws, recognised by itself")
        cloud.fault("refuse")
        findings = await bench.check(f'providers = ["auto"]\n{rest}')
    (line,) = named(findings, "cloud")
    assert (line.result, "none was recognised" in line.found) == (Result.WARN, True)


class Odd:
    """A provider of somebody else's, which breaks or hangs."""

    name: ClassVar[str] = "odd"
    config_class: ClassVar[type] = dict
    absence_withdraws: ClassVar[bool] = True
    signals = ("odd",)
    interval_seconds = 1.0
    act: ClassVar[Callable[[], Any]]

    def __init__(self, config: Any, context: providers.Context) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def detect(self) -> bool:
        """Say yes."""
        return True

    async def notices(self) -> Answer:
        """Break."""
        raise ZeroDivisionError("odd")

    async def wait(self) -> None:
        """Never used."""


async def test_a_provider_that_breaks_is_its_own_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's fault does not end the check."""
    load = providers.load
    monkeypatch.setattr(providers, "load", lambda name: Odd if name == "odd" else load(name))
    loaded = bench.load()
    settings = loaded.settings
    object.__setattr__(settings, "providers", ("odd",))
    findings = await bench.run(loaded)
    (line,) = named(findings, "signal.odd.odd")
    assert (line.result, "ZeroDivisionError" in line.found) == (Result.FAIL, True)


@pytest.mark.parametrize(
    ("server", "asked", "answered", "expected"),
    [
        (0, 0.2, 0.3, 0),  # within the same second
        (0, 0.9, 1.5, 0),  # the answer took its time
        (0, 5.0, 5.1, 4),  # ahead
        (10, 0.0, 0.5, -9.5),  # behind
    ],
)
def test_offset_counts_only_what_is_certain(
    server: float, asked: float, answered: float, expected: float
) -> None:
    """Whole seconds and a slow answer are no wrong clock."""
    at = [EPOCH + timedelta(seconds=s) for s in (asked, server, answered)]
    dated = Dated(asked_at=at[0], server_at=at[1], answered_at=at[2])
    assert offset_seconds(dated) == pytest.approx(expected)


def test_worst_of_several_clocks_counts() -> None:
    """Two clouds' times are both heard."""
    now = datetime(2026, 11, 29, tzinfo=UTC)
    good = Dated(asked_at=now, server_at=now, answered_at=now)
    bad = Dated(asked_at=now, server_at=now + timedelta(seconds=61), answered_at=now)
    assert judge_clock([good, bad]).result is Result.FAIL


@pytest.mark.parametrize(("says", "result"), [("yes", "ok"), ("no", "warn"), ("", "skip")])
def test_systemd_is_asked_where_no_cloud_tells_the_time(says: str, result: str, bench: Bench) -> None:
    """Its word is taken; its silence is no word."""
    folder = bench.home / "bin"
    folder.mkdir()
    (folder / "timedatectl").write_text(f"#!/bin/sh\necho {says}\n")
    (folder / "timedatectl").chmod(0o755)
    bench.patch("PATH", str(folder))
    assert ask_timedated().result == result
