# SPDX-License-Identifier: Apache-2.0
"""Name servers are asked for keys in time, and whatever they answer breaks nothing."""

from __future__ import annotations

from pathlib import Path

import dns.message
import dns.rcode
import dns.rrset
import pytest

from spotwatch.mail import keys
from spotwatch.mail.keys import KeyAnswer, KeyCache, KeyState, SystemResolver
from spotwatch.testing import FakeClock
from tests.mail.name_server import is_called, says, serving
from tests.quiet import in_quiet_time, since, virtual_now

_NAME = "s1._domainkey.digitalocean.com"
_TEXT = "v=DKIM1; p=abc"


async def _ask(*servers: str, name: str = _NAME) -> KeyAnswer:
    return (await KeyCache(SystemResolver(servers), FakeClock()).fetch([name]))[name]


@in_quiet_time
async def test_strings_of_a_record_are_joined() -> None:
    """A key longer than 255 bytes is published as several strings that belong together."""
    async with serving(says("v=DKIM1; p=ab", "cd", ttl=77)) as server:
        answer = await SystemResolver([server.address]).resolve(_NAME)
    assert answer == KeyAnswer(state=KeyState.FOUND, text="v=DKIM1; p=abcd", ttl_seconds=77.0)
    assert server.asked == [("udp", _NAME)]


@in_quiet_time
async def test_key_of_4096_bits_comes_by_udp() -> None:
    """Where TCP to name servers is blocked, usual keys must do without."""
    async with serving(says(*["a" * 250] * 3)) as server:
        answer = await _ask(server.address)
    assert len(answer.text) == 750
    assert [how for how, _ in server.asked] == ["udp"]


@in_quiet_time
async def test_long_answer_comes_by_tcp() -> None:
    """An answer too long for UDP is asked for again by TCP."""
    text = "v=DKIM1; p=" + "a" * 2000
    async with serving(says(*(text[i : i + 250] for i in range(0, len(text), 250)))) as server:
        answer = await _ask(server.address)
    assert answer.text == text
    assert [how for how, _ in server.asked] == ["udp", "tcp"]


@in_quiet_time
async def test_name_that_does_not_exist_is_missing() -> None:
    """NXDOMAIN says that there is no key; no search list is tried after it."""
    async with serving(says(rcode=dns.rcode.NXDOMAIN)) as server:
        assert (await _ask(server.address)).state is KeyState.MISSING
    assert server.asked == [("udp", _NAME)]


@in_quiet_time
async def test_name_without_text_is_missing() -> None:
    """An answer without a record says that there is no key."""
    async with serving(says()) as server:
        assert (await _ask(server.address)).state is KeyState.MISSING


@in_quiet_time
async def test_another_name_is_followed() -> None:
    """Senders publish the name of their service's key instead of the key; DKIM follows CNAME."""

    def answer(question: dns.message.Message) -> bytes:
        response = dns.message.make_response(question)
        asked = question.question[0].name
        response.answer.append(dns.rrset.from_text(asked, 300, "IN", "CNAME", "k.example.net."))
        response.answer.append(dns.rrset.from_text("k.example.net.", 60, "IN", "TXT", f'"{_TEXT}"'))
        return response.to_wire()

    async with serving(answer) as server:
        found = await _ask(server.address)
    assert (found.text, found.ttl_seconds) == (_TEXT, 60.0)


@pytest.mark.hostile(41)
@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED, dns.rcode.FORMERR])
def test_failing_name_server_is_no_answer(rcode: dns.rcode.Rcode) -> None:
    """A name server in trouble says nothing about a key."""

    @in_quiet_time
    async def story() -> None:
        async with serving(says(rcode=rcode)) as server:
            answer = await _ask(server.address)
        assert answer.state is KeyState.NO_ANSWER
        assert answer.why.startswith("NoNameservers")

    story()


@pytest.mark.hostile(41)
@in_quiet_time
async def test_silent_name_server_costs_three_seconds() -> None:
    """All names of a mail wait together, and no longer than that."""
    names = [f"s{i}._domainkey.digitalocean.com" for i in range(5)]
    async with serving(lambda _: None) as server:
        began = virtual_now()
        answers = await KeyCache(SystemResolver([server.address]), FakeClock()).fetch(names)
    assert 0.0 < since(began) <= 3.0
    assert [answers[name].state for name in names] == [KeyState.NO_ANSWER] * 5


@pytest.mark.hostile(41)
@in_quiet_time
async def test_second_name_server_answers_for_a_silent_one() -> None:
    """One dead name server of two costs a second."""
    async with serving(lambda _: None) as silent, serving(says(_TEXT)) as server:
        began = virtual_now()
        answer = await _ask(silent.address, server.address)
        assert 0.0 < since(began) <= 1.0
    assert answer.text == _TEXT


@pytest.mark.hostile(41)
@pytest.mark.parametrize(
    "names",
    [(_NAME, _NAME), (_NAME, "a.example", _NAME), (_NAME, *(f"a{i}.example" for i in range(40)))],
    ids=["itself", "two", "forty"],
)
def test_circle_of_names_is_no_answer(names: tuple[str, ...]) -> None:
    """Names that lead round and round, or on and on, say nothing about a key."""

    @in_quiet_time
    async def story() -> None:
        async with serving(is_called(*names)) as server:
            assert (await _ask(server.address)).state is KeyState.NO_ANSWER

    story()


@pytest.mark.hostile(41)
@in_quiet_time
async def test_huge_record_is_no_answer() -> None:
    """60 kB at the name of a key are not read as one."""
    async with serving(says(*["a" * 250] * 240)) as server:
        answer = await _ask(server.address)
    assert answer.state is KeyState.NO_ANSWER
    assert "60000 bytes" in answer.why


@pytest.mark.hostile(41)
@pytest.mark.parametrize(
    "answer", [b"", b"\x00", b"\xff" * 12, b"GET / HTTP/1.1\r\n\r\n"], ids=["empty", "short", "bits", "text"]
)
def test_answer_that_is_none_is_no_answer(answer: bytes) -> None:
    """What comes back on the port of the question but is no DNS is waited past, up to the limit."""

    @in_quiet_time
    async def story() -> None:
        async with serving(lambda _: answer) as server:
            assert (await _ask(server.address)).state is KeyState.NO_ANSWER

    story()


@in_quiet_time
async def test_name_server_that_refuses_connections_is_no_answer() -> None:
    """Nobody listening is an outage, not a missing key."""
    async with serving(says(_TEXT)) as server:
        address = server.address
    assert (await _ask(address)).state is KeyState.NO_ANSWER


def test_key_among_other_records_is_found() -> None:
    """A wildcard of the domain may answer beside the key; two keys are none, as RFC 6376 leaves it open."""

    def answer(*texts: str) -> KeyAnswer:
        return keys._key([text.encode() for text in texts], ttl_seconds=1.0)

    assert answer("v=spf1 -all", _TEXT).text == _TEXT
    assert answer("p=abc").text == "p=abc"
    assert answer(_TEXT, "v=DKIM1; p=def").state is KeyState.MISSING
    assert answer("v=spf1 -all", "other").state is KeyState.MISSING


# --- this machine's name servers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"search example.org\n",
        b"nameserver nonsense\n",
        b"\xff\xfe\x00",
        b"nameserver https://a/\n",
    ],
    ids=["absent", "empty", "no server", "no address", "no text", "address of the web"],
)
def test_unusable_resolv_conf_is_no_answer(tmp_path: Path, content: bytes | None) -> None:
    """A machine that does not know its name servers yet can still read mail."""
    path = tmp_path / "resolv.conf"
    if content is not None:
        path.write_bytes(content)

    @in_quiet_time
    async def story() -> None:
        cache = KeyCache(SystemResolver(resolv_conf=str(path)), FakeClock())
        answer = (await cache.fetch([_NAME]))[_NAME]
        assert answer.state is KeyState.NO_ANSWER
        assert answer.why

    story()


@in_quiet_time
async def test_resolv_conf_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    """What container runtimes make of a missing mount is a directory; a bad disk fails while reading."""
    for path in (str(tmp_path), "/proc/self/mem"):
        answer = await SystemResolver(resolv_conf=path).resolve(_NAME)
        assert answer.state is KeyState.NO_ANSWER


def test_name_servers_learned_later_are_used(tmp_path: Path) -> None:
    """What the file says counts when the question is asked, not when the daemon began."""
    path = tmp_path / "resolv.conf"
    resolver = SystemResolver(resolv_conf=str(path))
    path.write_text("nameserver 192.0.2.1\noptions timeout:30\n", encoding="ascii")
    client = resolver._client()
    assert client.nameservers == ["192.0.2.1"]
    assert (client.timeout, client.lifetime) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", ("192.0.2.1", 53)),
        ("192.0.2.1:5353", ("192.0.2.1", 5353)),
        ("2001:db8::1", ("2001:db8::1", 53)),
        ("[2001:db8::1]", ("2001:db8::1", 53)),
        ("[2001:db8::1]:5353", ("2001:db8::1", 5353)),
    ],
)
def test_address_of_a_name_server_may_have_a_port(text: str, address: tuple[str, int]) -> None:
    """Every form that the configuration accepts names the same server here."""
    (server,) = SystemResolver([text])._servers
    assert (server.address, server.port) == address
