# SPDX-License-Identifier: Apache-2.0
"""The keys of a mailbox: of the forms that others write, and signing what the reference server signs."""

from __future__ import annotations

import pytest

from spotwatch.errors import ConfigError
from spotwatch.mail.mailbox import Address
from spotwatch.mail.mailbox_form import (
    read_letters,
    write_letters,
)
from spotwatch.mail.mailbox_keys import PublicKey, SigningKey, is_signed
from spotwatch.testing import EPOCH
from tests.mail.letters import KEY, OURS, STRANGER, letter

# github.com/svix/svix-webhooks, server/svix-server/src/worker.rs, `test_asymmetric_key_signing`: the server
# that the specification's own example of `v1a` was made with.
_VECTOR = {
    "secret": "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
    "id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "timestamp": "1614265330",
    "body": '{"test": 2432232314}',
    "signature": "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TB"
    "Ag==",
}
_KEYS = [KEY.public]


def test_signs_what_the_reference_server_signs() -> None:
    """Keys and signatures have the form in which other implementations of the standard write them."""
    key = SigningKey.parse(_VECTOR["secret"])
    body = _VECTOR["body"].encode()
    assert key.sign(_VECTOR["id"], int(_VECTOR["timestamp"]), body) == _VECTOR["signature"]
    assert key.public.text == "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
    assert key.secret_text == _VECTOR["secret"]
    public = PublicKey.parse(key.public.text)
    assert is_signed([public], _VECTOR["signature"], _VECTOR["id"], _VECTOR["timestamp"], body)


def test_a_seed_alone_is_the_same_key() -> None:
    """The 32 bytes that other tools write sign like the 64 that we write."""
    assert SigningKey.parse("whsk_" + "a2tr" * 10 + "a2s=").secret_text == KEY.secret_text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not begin with whsk_"),
        ("whsec_" + "a2tr" * 10, "does not begin with whsk_"),
        ("whsk_%%%", "not base64"),
        ("whsk_a2tr", "3 bytes, not 32 or 64"),
        ("whsk_" + "a2tr" * 20 + "a2traw==", "do not belong together"),
    ],
)
def test_a_signing_key_of_another_form_is_refused(text: str, says: str) -> None:
    """Each mistake is named, and the secret itself is not repeated."""
    with pytest.raises(ConfigError, match=says) as caught:
        SigningKey.parse(text)
    assert "a2tra2tr" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (KEY.secret_text, "relay's signing key"),
        ("whpk_a2tr", "3 bytes, not 32"),
        ("age1qqq", "does not begin with whpk_"),
        ("whpk_ä", "not base64"),
    ],
)
def test_a_public_key_of_another_form_is_refused(text: str, says: str) -> None:
    """A signing key given to a Droplet by mistake is named without being repeated."""
    with pytest.raises(ConfigError, match=says) as caught:
        PublicKey.parse(text)
    assert KEY.secret_text not in str(caught.value)


@pytest.mark.parametrize(
    "signatures",
    [
        "",
        "v1a",
        "v1a,",
        "v1a,%%%",
        "v1a,é",
        "v1,AAAA",
        "v1a,AAAA",
        " ".join(["v1a,AAAA"] * 500),
        "v1a," + "A" * 9999,
    ],
)
def test_a_malformed_signature_is_none(signatures: str) -> None:
    """Whatever stands in its place is answered with no, never with an exception."""
    assert not is_signed(_KEYS, signatures, "msg_1", "1", b"{}")


def test_old_and_new_key_both_count_during_a_rotation() -> None:
    """A Droplet that knows both keys takes letters of either, and one that knows neither takes none."""
    raw = write_letters([letter()], KEY, now=EPOCH)
    both = [STRANGER.public, KEY.public]
    assert len(read_letters(raw, both, to=Address(OURS), now=EPOCH).letters) == 1
    assert read_letters(raw, [STRANGER.public], to=Address(OURS), now=EPOCH).letters == ()
