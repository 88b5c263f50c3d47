# SPDX-License-Identifier: Apache-2.0
"""Where the metadata service is, whether this machine is EC2's, and which instance it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, Malformed
from spotwatch.providers import Context
from spotwatch.providers._aws_machine import (
    IPV4_ENDPOINT,
    IPV6_ENDPOINT,
    Environment,
    endpoint_of,
    is_ec2,
    read_environment,
)
from spotwatch.providers.aws import Aws, Config
from spotwatch.testing import FakeClock
from tests.providers.imds import INSTANCE_ID, PATHS, TOKEN_PATH, Imds, make, polled
from tests.providers.raw_server import RawServer, body, drip, hang, raw, reset, status
from tests.quiet import in_quiet_time, since, virtual_now


@in_quiet_time
async def test_identity_is_asked_once() -> None:
    """The instance id is cached, and shares the token of the polls."""
    imds = Imds()
    async with polled(imds) as provider:
        await provider.notices()
        assert await provider.identity() == "i-0123456789abcdef0"
        assert await provider.identity() == "i-0123456789abcdef0"
    assert imds.asked(INSTANCE_ID) == 1
    assert imds.puts == 1


@pytest.mark.parametrize("answer", [status(404), body(""), body("<html>"), body("a b"), body(b"\xff")])
@in_quiet_time
async def test_an_identity_that_is_none_is_malformed(answer: object) -> None:
    """Nothing but an id is believed, and a later answer is asked for again."""
    imds = Imds()
    async with polled(imds) as provider:
        good, imds.routes[INSTANCE_ID] = imds.routes[INSTANCE_ID], answer  # type: ignore[assignment] # parametrised
        with pytest.raises(Malformed):
            await provider.identity()
        imds.routes[INSTANCE_ID] = good
        assert await provider.identity() == "i-0123456789abcdef0"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"sys_vendor": "Amazon EC2"}, True),
        ({"board_asset_tag": "i-0123456789abcdef0"}, True),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, True),
        ({"sys_vendor": "Xen", "product_uuid": "EC2E1916-9099-7CAF-FD21-012345ABCDEF"}, True),
        ({"sys_vendor": "Xen", "bios_version": "4.11"}, False),
        (
            {"sys_vendor": "Microsoft Corporation", "product_uuid": "ec2e1916-9099-7caf-fd21-012345abcdef"},
            False,
        ),
        ({"board_asset_tag": "i-am-a-laptop"}, False),
        ({"sys_vendor": "Google"}, False),
        ({}, False),
    ],
)
def test_dmi_names_ec2(texts: dict[str, str], expected: bool) -> None:
    """Nitro, metal and Xen are known; another vendor's uuid that happens to begin with ec2 is not."""
    assert is_ec2(lambda name: texts.get(name, "")) is expected


@in_quiet_time
async def test_detection_by_dmi_asks_nobody() -> None:
    """A machine that says it is EC2's is believed without a request."""
    async with RawServer() as server:
        context = Context(clock=FakeClock(), runtime_dir=Path("/nonexistent"))
        config = Config(endpoint=server.url)
        provider = Aws(config, context, dmi={"sys_vendor": "Amazon EC2"}.get)  # type: ignore[arg-type] # a text
        assert await provider.detect()
    assert server.requests == []


@in_quiet_time
async def test_detection_by_one_request() -> None:
    """A service that gives a token is EC2's; nothing else is asked, before or after the context."""
    async with Imds() as imds:
        provider = make(imds.url)
        assert await provider.detect()
        assert [(r.method, r.path) for r in imds.requests] == [("PUT", TOKEN_PATH)]
        async with provider:
            assert await provider.detect()
        await imds.wait_until_idle()


@pytest.mark.parametrize(
    "answer",
    [status(404), status(403), status(500), body("<html>"), body(""), reset, hang, drip, raw(b"x\r\n")],
)
@in_quiet_time
async def test_whatever_else_is_not_ec2(answer: object) -> None:
    """No token means no, within 2 s, and never an exception."""
    async with RawServer({TOKEN_PATH: answer}) as server:  # type: ignore[dict-item] # parametrised
        began = virtual_now()
        assert not await make(server.url).detect()
        assert since(began) < 2
        await server.wait_until_idle()


@in_quiet_time
async def test_detection_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """`AWS_EC2_METADATA_DISABLED=true` means no, without a request, as for AWS's own tools."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "TRUE")
    async with Imds() as imds:
        assert not await make(imds.url).detect()
        assert imds.requests == []


def test_the_environment_is_read_as_aws_tools_do(tmp_path: Path) -> None:
    """Each variable, its spellings, and the marks of a container."""
    assert read_environment({}, root=tmp_path) == Environment()
    assert read_environment({"AWS_EC2_METADATA_DISABLED": "True"}, root=tmp_path).is_disabled
    assert not read_environment({"AWS_EC2_METADATA_DISABLED": "no"}, root=tmp_path).is_disabled
    assert read_environment({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}, root=tmp_path).ipv6
    assert not read_environment({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv4"}, root=tmp_path).ipv6
    assert read_environment({"AWS_IMDS_USE_IPV6": "true"}, root=tmp_path).ipv6
    assert read_environment({"AWS_EC2_METADATA_V1_DISABLED": "true"}, root=tmp_path).is_v1_disabled
    assert read_environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, root=tmp_path).is_container
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".containerenv").touch()
    assert read_environment({}, root=tmp_path).is_container


def test_which_endpoint_is_asked() -> None:
    """The setting, then the variable, then the mode, then IPv4."""
    named = Environment(endpoint="http://b", ipv6=True)
    assert endpoint_of(Config(endpoint="http://a"), named) == "http://a"
    assert endpoint_of(Config(), named) == "http://b"
    assert endpoint_of(Config(), Environment(ipv6=True)) == IPV6_ENDPOINT == "http://[fd00:ec2::254]"
    assert endpoint_of(Config(ipv6=True), Environment()) == IPV6_ENDPOINT
    assert endpoint_of(Config(), Environment()) == IPV4_ENDPOINT == "http://169.254.169.254"


@in_quiet_time
async def test_the_endpoint_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable reaches the wire, with a trailing slash or without."""
    async with Imds() as imds:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url + "/")
        async with make("") as provider:
            assert (await provider.notices()).answered == set(PATHS)


@in_quiet_time
async def test_ipv6_literals_work() -> None:
    """An endpoint in brackets is reached over IPv6."""
    try:
        server = await RawServer(host="::1").__aenter__()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    try:
        server.routes[f"PUT {TOKEN_PATH}"] = body("token")
        assert await make(server.url).detect()
    finally:
        await server.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "169.254.169.254"},
        {"endpoint": "ftp://x"},
        {"endpoint": "http://"},
        {"endpoint": "http://x:99999"},
        {"endpoint": "http://[::1"},
        {"interval_seconds": 0},
        {"interval_seconds": float("nan")},
        {"timeout_seconds": -1},
        {"token_ttl_seconds": 0},
        {"token_ttl_seconds": 21601},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float]) -> None:
    """Each with its name in the message."""
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        Config(**settings)  # type: ignore[arg-type] # parametrised


def test_a_variable_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable, since no file of ours has the mistake."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "imds.local")
    with pytest.raises(ConfigError, match=r"AWS_EC2_METADATA_SERVICE_ENDPOINT: 'imds\.local'"):
        make("")
