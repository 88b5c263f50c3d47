# SPDX-License-Identifier: Apache-2.0
"""Droplets as texts name them, and what only looks like it."""

from __future__ import annotations

import pytest

from spotwatch.mail.droplets import find, has_name_like
from spotwatch.mail.model import Droplet
from spotwatch.mail.patterns import default_patterns

WORDS = default_patterns().common_words
ID = 512345678
SPOT_1 = Droplet(
    droplet_id=ID,
    names=frozenset({"spot-1"}),
    addresses=frozenset({"203.0.113.7", "2001:db8::7"}),
)


def by(text: str, droplet: Droplet = SPOT_1) -> str:
    """Return by what the text names the Droplet; empty: it does not."""
    return next((mention.by for mention in find(text, [droplet], common_words=WORDS).mentions), "")


def names_others(text: str, *droplets: Droplet) -> bool:
    """Tell whether the text names others than these."""
    return find(text, droplets or [SPOT_1], common_words=WORDS).others


@pytest.mark.hostile(49)
@pytest.mark.parametrize(
    "text",
    [
        "spot-1",
        "Droplet spot-1 goes",
        "SPOT-1, Spot-2",
        "It is spot-1.",
        "It is spot-1... and more",
        "(spot-1)",
        '"spot-1"',
        "spot-1's disk",
        "spot-1: gone",
        "spot-1!",
        "spot-1/nyc3",
        "https://cloud.example/list?name=spot-1&x",
        "spot\u20101",
        "spot\u20111",
        "a\nspot-1\nb",
    ],
)
def test_a_name_counts_as_a_whole_token(text: str) -> None:
    """In any case of letters, with a sentence's marks around it."""
    assert by(text) == "name"


@pytest.mark.hostile(49)
@pytest.mark.parametrize(
    "text",
    [
        "spot-10",
        "spot-1-old",
        "my.spot-1",
        "my-spot-1",
        "spot-1.example.com",
        "spot-1_b",
        "_spot-1_",
        "xspot-1",
        "spot-1-",
        "-spot-1",
        "spot-1@example.com",
        "root@spot-1",
        "spot - 1",
        "sp\u043et-1",
        "spot\u20131",
    ],
)
def test_a_part_of_another_token_is_no_name(text: str) -> None:
    """Longer names, hosts below it, mailboxes, look-alikes."""
    assert by(text) == ""


@pytest.mark.hostile(49)
@pytest.mark.parametrize(
    "name", ["droplet", "start", "gpu", "spot", "team", "hello", "nyc3", "h100", "1", "2026", "12.5"]
)
def test_a_name_that_is_a_word_needs_a_number_or_an_address(name: str) -> None:
    """It stands in mails anyway."""
    droplet = Droplet(
        droplet_id=ID, names=frozenset({name}), hostname=name, addresses=frozenset({"203.0.113.7"})
    )
    text = f"Hello team, start: the gpu Droplet {name} in nyc3 (spot, h100) 1, 12.5, 2026"
    assert by(text, droplet) == ""
    assert not names_others(f"Affected Droplets:\n{name}", droplet)
    assert by(f"{text} {ID}", droplet) == "id"
    assert by(f"{text} 203.0.113.7", droplet) == "address"


def test_a_hostname_is_weaker_than_an_address_that_than_a_name_and_all_than_a_number() -> None:
    """The strongest mark counts, wherever it stands."""
    droplet = Droplet(
        droplet_id=ID, names=frozenset({"alpha-1"}), hostname="spot-1", addresses=frozenset({"203.0.113.7"})
    )
    assert by("spot-1", droplet) == "hostname"
    assert by("spot-1 alpha-1", droplet) == "name"
    assert by("spot-1 203.0.113.7", droplet) == "address"
    assert by("spot-1 alpha-1 203.0.113.7", droplet) == "name"
    assert by(f"spot-1 alpha-1 203.0.113.7 {ID}", droplet) == "id"


@pytest.mark.hostile(50, 51)
@pytest.mark.parametrize(
    "text",
    [
        f"{ID}",
        f"Droplet {ID}.",
        f"Droplet ID: {ID}",
        f"Droplet #{ID}",
        f"(ID #{ID})",
        f"id={ID}",
        f"droplet_id {ID},",
        f"do:droplet:{ID}",
        f"https://cloud.digitalocean.com/droplets/{ID}/graphs?i=1",
        f"ticket 4711 about Droplet {ID}",
        f"phone +1 555 0100\n{ID}",
    ],
)
def test_a_number_counts_as_a_whole(text: str) -> None:
    """Bare, after the word Droplet or id, or in a link."""
    assert by(text) == "id"


@pytest.mark.hostile(51)
@pytest.mark.parametrize(
    "text",
    [
        f"1{ID}",
        f"{ID}0",
        f"{ID}.5",
        f"{ID},000",
        f"5-{ID}",
        f"{ID}-5",
        f"v{ID}",
        f"{ID}x",
        f"spot-{ID}",
        f"#{ID}",
        f"Ticket {ID}",
        f"ticket #{ID}",
        f"Ticket ID: {ID}",
        f"case no. {ID}",
        f"invoice {ID}",
        f"Order: {ID}",
        f"ref. {ID}",
        f"+1 {ID}",
        f"+1{ID}",
        f"+49 (0) {ID}",
        f"phone {ID}",
        f"Tel.: {ID}",
        f"${ID}",
        f"account {ID}",
        f"snapshot {ID}",
        "5123 45678",
        "512,345,678",
        "\u0665\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668",
    ],
)
def test_a_number_of_another_kind_is_no_droplets(text: str) -> None:
    """Longer ones, tickets, telephones, invoices, money."""
    assert by(text) == ""


@pytest.mark.hostile(51)
def test_a_short_number_counts_only_after_the_word() -> None:
    """42 may be anything; Droplet 42 is one."""
    droplet = Droplet(droplet_id=42)
    assert by("42 of them", droplet) == ""
    assert by("Droplet 42", droplet) == "id"
    assert by("https://cloud.digitalocean.com/droplets/42", droplet) == "id"


@pytest.mark.parametrize(
    "text",
    [
        "203.0.113.7",
        "at 203.0.113.7.",
        "203.0.113.7:22",
        "http://203.0.113.7/x",
        "(203.0.113.7)",
        "203.0.113.7/20",
        "203.0.113.7/32",
        "2001:db8::7",
        "[2001:db8::7]:22",
        "2001:DB8:0:0:0:0:0:7",
        "2001:0db8:0000:0000:0000:0000:0000:0007/64",
        "2001:db8::7.",
        "IPv6: 2001:db8::7:",
        "::ffff:203.0.113.7",
    ],
)
def test_an_address_counts_in_every_form(text: str) -> None:
    """With a port, a prefix, short and long."""
    assert by(text) == "address"


@pytest.mark.hostile(51)
@pytest.mark.parametrize(
    "text",
    [
        "203.0.113.70",
        "1203.0.113.7",
        "203.0.113.7.5",
        "203.0.113.7.example",
        "v203.0.113.7",
        "203.0.113.07",
        "203.0.113.0/24",
        "203.0.113.7-9",
        "2001:db8::70",
        "2001:db8::7:1",
        "2001:db8::/64",
        "12:30:07",
        "::",
    ],
)
def test_another_address_or_a_network_is_none_of_ours(text: str) -> None:
    """Only the whole address."""
    assert by(text) == ""


def test_addresses_of_the_configuration_may_be_written_in_any_form() -> None:
    """They are compared as addresses; what is none is no mark."""
    droplet = Droplet(droplet_id=ID, addresses=frozenset({"2001:DB8:0::7", "nonsense"}))
    assert by("2001:db8::7", droplet) == "address"
    assert by("nonsense", droplet) == ""


@pytest.mark.hostile(50)
def test_ours_is_found_last_of_five_hundred_and_once_when_named_twice() -> None:
    """In a list, in prose and in a link."""
    lines = "\n".join(f"spot-{number}" for number in range(2, 501))
    assert by(f"Affected Droplets:\n{lines}\nspot-1") == "name"
    assert len(find(f"spot-1 spot-1 {ID}", [SPOT_1], common_words=WORDS).mentions) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Affected Droplets:\n\nspot-7\nspot-8",
        "Affected DigitalOcean resources:\nspot-7",
        "The following Droplets will go: spot-7, spot-8",
        "Affected Droplets:\nspot-7 (203.0.113.9)\n",
        "Affected Droplets:\nhttps://cloud.digitalocean.com/droplets?i=1\nspot-7",
        "Your Droplet spot-7 will be reclaimed",
        "The Droplet named gandalf2 will",
        "Droplet: spot-7",
        "https://cloud.digitalocean.com/droplets/500000001",
        "Droplet ID: 500000001",
        f"Droplets 500000001 and {ID}",
    ],
)
def test_others_are_named(text: str) -> None:
    """In a list, after the word Droplet, in a link."""
    assert names_others(text)


@pytest.mark.hostile(52)
@pytest.mark.parametrize(
    "text",
    [
        "Your Droplet will be reclaimed",
        "Your Spot GPU Droplet in nyc3 will be reclaimed within 24 hours",
        "Your Droplet gpu-h100x1-80gb will be reclaimed",
        "Droplet s-2vcpu-4gb",
        "Droplet H100, MI300X, 8xH100",
        "Droplet 2026-11-29",
        "Droplet auto-scaling, Droplet add-ons and on-demand Droplets",
        "Droplet 24-hour notice",
        "Affected Droplets:\n\nTeam DigitalOcean",
        "Affected Droplets:\n\nThanks,\n\nCheers",
        "Affected Droplets: see below\nRegion: nyc3-a\n",
        "Please take these steps for your Droplets:\n1. save your work, 2. leave",
        "write to 203.0.113.9",
        "ticket 500000001",
        f"Droplet {ID}",
        "Droplet spot-1",
        "",
    ],
)
def test_no_others_are_named(text: str) -> None:
    """Sizes, regions, days and sentences are no names, and must not hide that ours may be meant."""
    assert not names_others(text)


def test_names_say_nothing_of_others_while_ours_is_unknown() -> None:
    """A Droplet that is known by number only may have any name; a number says enough."""
    unknown = Droplet(droplet_id=ID)
    assert not names_others("Your Droplet spot-7 will be reclaimed", unknown)
    assert names_others("Droplet ID: 500000001", unknown)
    assert not find("Droplet ID: 500000001", [], common_words=WORDS).others


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("the reclaim of web1 is off", True),
        ("it is off since 2026-11-29 12:00 UTC", False),
        ("two-hour notice", False),
    ],
)
def test_a_token_of_letters_and_digits_may_be_a_name(text: str, *, is_one: bool) -> None:
    """Where a doubt is enough."""
    assert has_name_like(text, common_words=WORDS) is is_one
