"""The report in Markdown, read by a parser as GitHub has it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis
from stepscope.report.markdown import render_markdown
from stepscope.report.markdown_text import code, plain, sentence, table

from tests.support import analysis as made

GITHUB = MarkdownIt("gfm-like", {"html": True, "linkify": True})
assert GITHUB.linkify is not None
GITHUB.linkify.set({"fuzzy_link": False})  # GitHub makes no link of a.de; of www.a.de it does: see below
OURS = {
    *("heading", "paragraph", "strong", "list_item", "bullet_list", "ordered_list"),
    *("table", "thead", "tbody", "tr", "th", "td", "inline", "text", "code_inline", "softbreak"),
}
WORDS = st.text(
    st.sampled_from("ab 1\t\n\r\u2028\u202e`*_~[]()<>|\\&#@:/.$!-+=\"'{}"),
    max_size=30,
) | st.sampled_from(
    [
        "<b>",
        "**a**",
        "[a](http://b)",
        "http://a.de",
        "www.a.de",
        "@team",
        "#12",
        "a@b.de",
        "&lt;",
        "``",
        "a|b",
    ]
)


def tokens(text: str) -> list[Token]:
    flat: list[Token] = []
    for token in GITHUB.parse(text):
        flat += [token, *(token.children or [])]
    return flat


def kinds(text: str) -> set[str]:
    return {token.type.removesuffix("_open").removesuffix("_close") for token in tokens(text)}


def shown(text: str) -> str:
    """What a reader sees of it, less the spaces of no width."""
    seen = "".join(token.content for token in tokens(text) if token.type in ("text", "code_inline"))
    return seen.replace("\u200b", "")


def as_one_line(words: str) -> str:
    return "".join(" " if character.isspace() else character for character in words if character != "\u202e")


@given(WORDS)
def test_plain_words_are_shown_as_they_are_and_are_nothing_but_text(words: str) -> None:
    text = f"x {plain(words)} x"
    assert kinds(text) <= {"paragraph", "inline", "text", "text_special"}
    assert shown(text).split() == f"x {as_one_line(words)} x".split()


@given(WORDS)
def test_words_in_code_are_shown_as_they_are(words: str) -> None:
    text = f"x {code(words)} x"
    assert kinds(text) <= {"paragraph", "inline", "text", "code_inline"}
    assert shown(text).split() == f"x {as_one_line(words)} x".split()


@given(st.lists(WORDS, min_size=2, max_size=2))
def test_no_words_break_a_table(words: list[str]) -> None:
    text = table(("one", "two"), [[code(words[0]), plain(words[1])], ["a", sentence("`".join(words))]], [1])
    cells = [token for token in tokens(text) if token.type in ("th_open", "td_open")]
    assert len(cells) == 6
    assert kinds(text) <= {*OURS, "text_special"}
    alone = table(("one", "two"), [[f"x {code(words[0])}", f"x {plain(words[1])}"]])
    expected = f"onetwox{as_one_line(words[0])}x{as_one_line(words[1])}"
    assert "".join(shown(alone).split()) == "".join(expected.split())


@given(WORDS)
def test_what_github_links_after_parsing_is_broken_up(words: str) -> None:
    for linked in ("@team", "#team", "www.team", "WWW.team", "http://team"):
        assert linked not in plain(f"{words} {linked}")


@pytest.mark.parametrize("make", made.EVERY_ANALYSIS)
def test_a_report_has_headings_lists_and_tables_and_nothing_else(make: Callable[[], Analysis]) -> None:
    text = render_markdown(make(), 14.688)
    assert kinds(text) <= {*OURS, "text_special"}
    assert text.endswith("\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize("make", made.EVERY_ANALYSIS)
def test_the_verdict_comes_before_all_else_and_the_whole_is_short(make: Callable[[], Analysis]) -> None:
    text = render_markdown(make())
    title, verdict, *_ = text.split("\n\n")
    assert title.startswith("## Training run ")
    assert not verdict.startswith(("|", "#"))
    assert len(text) < 9_000


def test_a_finding_has_its_time_its_money_and_what_to_do() -> None:
    text = render_markdown(made.slow_loader(), 14.688)
    assert (
        "1. **Waiting for busy CPU cores: about 7 min 11 s, 60 % of the run, $1.76.** GPUs sat idle" in text
    )
    assert "**What to do:** Give the data loader more than its 2 workers" in text
    assert "| Cost | $2.94 | $14.69 per node and hour |" in text


def test_rules_that_saw_the_same_thing_are_one_finding() -> None:
    rules = [made.rule(name, Status.FOUND, seconds_lost=60.0) for name in ("DataStarved", "CPUBottleneck")]
    text = render_markdown(made.slow_loader(rules=rules))
    assert text.count("**What to do:**") == 1
    assert "(Rules: DataStarved and CPUBottleneck)" in text


def test_more_than_three_findings_are_named_in_one_line() -> None:
    names = ("A", "B", "C", "D", "E")
    text = render_markdown(made.slow_loader(rules=[made.rule(name, Status.FOUND) for name in names]))
    assert "Also found: D (D), E (E)." in text


def test_what_could_not_be_judged_is_said_with_the_reason() -> None:
    text = render_markdown(made.no_gpu())
    assert (
        "Not enough data: CPUBottleneck, IOBottleneck, LowGPUUtilization. No GPU was seen on any node."
        in text
    )


def test_many_nodes_do_not_make_it_long() -> None:
    assert "14 more nodes: see report.json." in render_markdown(made.sixteen_nodes())
