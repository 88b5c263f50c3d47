# SPDX-License-Identifier: Apache-2.0
"""What a person sees of an HTML mail, and what he does not."""

from __future__ import annotations

import pytest

from spotwatch.mail.html import MAX_MARKS, read_page, visible_text
from spotwatch.mail.normalising import MAX_CHARACTERS


@pytest.mark.hostile(36)
@pytest.mark.parametrize(
    ("html", "seen"),
    [
        ("<b>spot-<wbr>trainer</b>-01", "spot-trainer-01"),
        ("spot-&#8203;trainer&shy;-<i>0</i>1", "spot-trainer-01"),
        ("spot&#x2D;trainer&#45;01", "spot-trainer-01"),
        ("<a href='https://x/'>spot</a>-trainer-01", "spot-trainer-01\nhttps://x/"),
        ("spot<!-- not -->-trainer<!---->-01", "spot-trainer-01"),
        ("spot<span title='a > b'>-trainer</span>-01", "spot-trainer-01"),
        ("Your&nbsp;Droplet &amp; you", "Your Droplet & you"),
        ("a <b>bold</b>\n   word", "a bold word"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
    ],
)
def test_a_name_reads_as_it_is_seen(html: str, seen: str) -> None:
    """Tags, entities and invisible characters inside a name do not split it."""
    assert visible_text(html) == seen


@pytest.mark.hostile(36)
@pytest.mark.parametrize(
    "hidden",
    [
        "<p style='display:none'>reclaim</p>",
        '<p STYLE="color:red; Display : None !important">reclaim</p>',
        "<p style=display:none>reclaim</p>",
        "<p style='display&colon;none'>reclaim</p>",
        "<div style='visibility:hidden'><b>reclaim</b></div>",
        "<span style='font-size:0'>reclaim</span>",
        "<span style='font-size:0.0px'>reclaim</span>",
        "<span style='opacity:0'>reclaim</span>",
        "<span hidden>reclaim</span>",
        "<span hidden=''>reclaim<br>reclaim</span>",
        "<template>reclaim</template>",
        "<!-- reclaim -->",
        "<!--[if mso]><p>reclaim</p><![endif]-->",
        "<!reclaim>",
        "<?reclaim?>",
        "</ reclaim>",
        "<script>reclaim('</p>')</script>",
        "<style>.reclaim{}</style>",
        "<head><title>reclaim</title></head>",
        "<img alt=reclaim>",
        "<a href='javascript:reclaim'></a>",
        "<div style='max-height:0;overflow:hidden'>reclaim</div>",
        "<div style='height:1px; overflow:hidden'>reclaim</div>",
        "<span style='color:#FFF'>reclaim</span>",
        "<span style='color:rgb(255, 255, 255)'>reclaim</span>",
        "<span style='color:white;background:#fff'>reclaim</span>",
        "<span style='color:transparent'>reclaim</span>",
        "<font color=white>reclaim</font>",
        "<div style='position:absolute;left:-9999px'>reclaim</div>",
        "<p style='text-indent:-999em'>reclaim</p>",
        "<p style='mso-hide:all'>reclaim</p>",
        "<p style='clip: rect(0 0 0 0)'>reclaim</p>",
        "<p style='transform: scale(0)'>reclaim</p>",
        "<p style='font-size:1px'>reclaim</p>",
        "<p style='display:none'>reclaim <div style='display:none'>reclaim</p>reclaim</div>",
    ],
)
def test_hidden_text_is_not_seen(hidden: str) -> None:
    """What a person does not see cannot speak of a reclaim, and what follows is seen again."""
    assert visible_text(f"<p>before</p>{hidden}<p>after</p>").split() == ["before", "after"]


@pytest.mark.parametrize(
    "shown",
    [
        "<p aria-hidden=true>reclaim",
        "<p style='display:none;display:block'>reclaim",
        "<p style='font-size:0.9em'>reclaim",
        "<p style='font-size:10px;opacity:0.5'>reclaim",
        "<p title='style=display:none'>reclaim",
        "<p style='max-height:50px;overflow:hidden'>reclaim",
        "<p style='height:40px;overflow:hidden;margin-left:-9px'>reclaim",
        "<p style='background:#0069ff;color:#fff'>reclaim",
        "<table bgcolor=navy><tr><td><p style='color:white'>reclaim</table>",
        "<span style='color:#fff'>x</span>reclaim",
        "<p data-hidden=1>reclaim",
        "<p style='display:none'>x<p>reclaim",
        "<ul><li hidden>x<li>reclaim</ul>",
        "<table><tr hidden><td>x<tr><td>reclaim</table>",
        "<table><tr><td hidden>x<td>reclaim</table>",
        "<br hidden>reclaim",
        "<p style='display:none' style='x:y'>x</p>reclaim",
        "<![if !mso]>reclaim<![endif]>",
        "<title/>x</title>reclaim",
        "<script>'<!--'</script>reclaim",
        "<noscript>reclaim</noscript>",
        "</p></div></b>reclaim",
    ],
)
def test_what_is_seen_is_read(shown: str) -> None:
    """Nothing that a person sees is taken for hidden: a reclaim would be missed."""
    assert "reclaim" in visible_text(shown)


def test_rows_items_and_paragraphs_have_a_line_each() -> None:
    """Tables, lists and paragraphs keep the lines that a person sees."""
    page = (
        "<h1>Notice</h1><p>First<br>second</p><div>third</div>"
        "<table><tr><th>Start:</th><td>2026-11-29 16:12 UTC</td></tr><tr><td>End:<td>later</table>"
        "<ul><li>spot-1<li>spot-2</ul><pre>a\n  b</pre>c"
    )
    assert visible_text(page).replace("\n\n", "\n").split("\n") == [
        "Notice",
        "First",
        "second",
        "third",
        "Start: 2026-11-29 16:12 UTC",
        "End: later",
        "spot-1",
        "spot-2",
        "> a",
        "> b",
        "c",
    ]


@pytest.mark.hostile(50)
def test_the_address_of_a_link_is_kept_on_its_own_line() -> None:
    """A Droplet may be named by nothing but the link to its page."""
    page = "<p>See <a href=' https://cloud.digitalocean.com/droplets/512345678?a=1&amp;b=2 '>it</a> now</p>"
    assert visible_text(page) == "See it now\nhttps://cloud.digitalocean.com/droplets/512345678?a=1&b=2"


def test_a_block_quote_reads_like_a_quote_in_plain_mail() -> None:
    """Its lines begin with the sign of a quote; those after it do not."""
    page = "<p>mine</p><blockquote>theirs<br>too <blockquote>older</blockquote></blockquote>mine"
    lines = [line for line in visible_text(page).split("\n") if line.strip("> ")]
    assert lines == ["mine", "> theirs", "> too", "> older", "mine"]


@pytest.mark.hostile(45)
@pytest.mark.parametrize("name", ["q", "s", "strike", "del", "samp"])
def test_words_of_others_and_words_struck_out_stand_in_quotation_marks(name: str) -> None:
    """What they say is cited; a name alone stays a name."""
    assert visible_text(f"a <{name}>b c</{name}> d") == "a \u201cb c\u201d d"


@pytest.mark.hostile(45)
@pytest.mark.parametrize("name", ["blockquote", "pre", "textarea", "listing"])
def test_a_block_of_others_words_reads_as_quoted(name: str) -> None:
    """A log, a report or what somebody has typed into a form."""
    assert visible_text(f"<p>a<{name}>b\nc</{name}>d").replace("\n\n", "\n").splitlines()[1:] in (
        ["> b c", "d"],
        ["> b", "> c", "d"],
        [">", "> b c", ">", "d"],
    )


@pytest.mark.hostile(36)
@pytest.mark.parametrize("unclosed", ["<!-- ", "<a href='", "<p ", '<p title="', "<script>", "</p "])
def test_what_has_no_end_swallows_the_rest(unclosed: str) -> None:
    """As in a browser, which shows nothing of it."""
    assert visible_text(f"seen {unclosed}reclaim") == "seen"


@pytest.mark.hostile(34)
@pytest.mark.parametrize("number", ["9" * 5000, "x" + "f" * 5000, "99999999", "0", "xD800", "1114112"])
def test_an_entity_that_is_no_character_raises_nothing(number: str) -> None:
    """Numbers of 4,301 digits are a ValueError in the standard library's parser."""
    assert visible_text(f"a&#{number};b") in ("a\ufffdb", "ab")


def test_a_page_beyond_the_limits_is_cut_and_says_so() -> None:
    """Neither endless tags nor endless text are read to the end."""
    assert read_page("<b>" * (MAX_MARKS + 1)).is_cut
    assert read_page("<p " + "a " * MAX_MARKS + "hidden>x").is_cut
    long = read_page("word " * MAX_CHARACTERS)
    assert long.is_cut
    assert len(long.text) <= 2 * MAX_CHARACTERS
    assert not read_page("<p>short").is_cut
