# SPDX-License-Identifier: Apache-2.0
"""What `check` says of a mailbox that does not work: never the advice for a metadata service."""

from __future__ import annotations

import pytest

from spotwatch.checks import Finding, Result
from spotwatch.emulator import Emulator
from tests.checks.bench import Bench, free_port, named
from tests.mail.letters import KEY
from tests.train.s3_stand_in import S3StandIn, refusal

_SIGNAL = "signal.digitalocean.mailbox"


async def _check(bench: Bench, url: str, *, environ: str = "", key: str = KEY.public.text) -> list[Finding]:
    """Check a Droplet that polls `url`, its credentials in a file."""
    more = ""
    if environ:
        file = bench.home / "mailbox.env"
        file.touch(mode=0o600)
        file.write_text(environ)
        more = f'mailbox_credentials_file = "{file}"\n'
    async with Emulator("digitalocean") as emulator:
        return await bench.check(
            'providers = ["digitalocean"]\n[provider.digitalocean]\n'
            f'endpoint = "{emulator.base_url}"\nmailbox = "{url}"\nmailbox_keys = ["{key}"]\n{more}'
        )


@pytest.mark.parametrize(
    ("url", "environ", "mend"),
    [
        ("https://127.0.0.1:{port}/box", "", "see whether the mailbox can be reached"),
        ("file://{home}/nothing", "", "see whether `spotwatch relay` runs"),
        ("s3://mail", "AWS_ENDPOINT_URL=http://127.0.0.1:{port}\n", "see whether the bucket's endpoint"),
        ("s3://gone", "AWS_ENDPOINT_URL={store}\n", "make the bucket"),
        ("s3://denied", "AWS_ENDPOINT_URL={store}\n", "mailbox_credentials_file"),
    ],
)
async def test_a_mailbox_has_advice_of_its_own(bench: Bench, url: str, environ: str, mend: str) -> None:
    """Refused, missing, empty or forbidden: each says what of the mailbox is to be mended."""
    replies = {"s3://gone": refusal(404, "NoSuchBucket"), "s3://denied": refusal(403, "AccessDenied")}
    with S3StandIn(lambda _: replies.get(url)) as store:
        places = {"port": free_port(), "home": bench.home, "store": store.url}
        keys = "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\n" if environ else ""
        lines = await _check(bench, url.format(**places), environ=keys + environ.format(**places))
    (line,) = named(lines, _SIGNAL)
    assert line.result is Result.FAIL
    assert mend in line.mend
    assert "metadata" not in line.mend


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://Bad_Bucket!/x", "no bucket's name"),
        ("https://127.0.0.1:99999/x", "Port out of range"),
        ("https://u:p@mail.example/x", "nothing after it"),
        ("spaces://", "names no bucket"),
    ],
)
async def test_an_address_that_is_none_is_the_configurations_fault(bench: Bench, url: str, says: str) -> None:
    """The daemon would not start with it, and nothing of it is asked."""
    lines = await _check(bench, url)
    told = [line for line in lines if line.name == "cloud" and line.result is Result.FAIL]
    assert any(says in line.found for line in told)
    assert ":p@" not in str(lines)
