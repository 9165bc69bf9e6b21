"""The layout of prompts for code between code, and of pairs for rerankers, on a vocabulary of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.chat.infill import Gap, Marks, Room, lay_out
from lcpd.chat.ranking import Ends, pair

PRE, SUF, MID, REP, SEP, BOS = range(1000, 1006)
ALL = Marks(PRE, SUF, MID, REP, SEP, bos=-1)
FEW = Marks(PRE, SUF, MID, -1, -1, bos=BOS)
ROOM = Room(context=4096, batch=2048, reply=64)


def tokens(text, parse_special):
    parts = [text] if isinstance(text, str) else text
    return [token for part in parts for token in ([part] if isinstance(part, int) else part.encode())]


def laid_out(gap, room=ROOM, marks=ALL):
    """The prompt with its texts put together again."""
    told, text = [], b""
    files, code = lay_out(gap, room, marks, tokens)
    for token in [*files, *code, None]:
        if token is not None and token < 256:
            text += bytes([token])
            continue
        told += [text.decode()] * bool(text) + [token]
        text = b""
    return told[:-1]


def test_the_prefix_is_before_the_suffix_and_the_prompt_goes_on_from_the_prefix():
    gap = Gap("def f(", "): pass", "x", files=[])
    assert laid_out(gap) == [REP, "myproject\n", SEP, "filename\n", PRE, "def f(x", SUF, "): pass", MID]
    assert laid_out(gap, marks=FEW) == [BOS, PRE, "def f(x", SUF, "): pass", MID]


def test_other_files_come_first():
    gap = Gap("a", "b", "", files=[("one.py", "x = 1"), ("two.py", "y = 2")])
    files = [SEP, "one.py\nx = 1", SEP, "two.py\ny = 2", SEP, "filename\n"]
    assert laid_out(gap) == [REP, "myproject\n", *files, PRE, "a", SUF, "b", MID]
    snippets = "\n\n--- snippet ---\n\nx = 1\n\n--- snippet ---\n\ny = 2"
    assert laid_out(gap, marks=FEW) == [snippets, BOS, PRE, "a", SUF, "b", MID]


def test_texts_may_have_tokens_in_them():
    assert laid_out(Gap(["a", 98], [99], "", []), marks=FEW) == [BOS, PRE, "ab", SUF, "c", MID]


def test_of_too_much_the_nearest_stays():
    gap = Gap("p" * 99 + "q", "s" + "t" * 99, "", files=[("f", "x" * 99 + "y")])
    room = Room(context=100, batch=40, reply=10)
    files, laid = lay_out(gap, room, FEW, tokens)
    assert laid == [BOS, PRE, *b"p" * 29, *b"q", SUF, *b"sttttttt", MID]
    assert bytes(files) == b"x" * 47 + b"y"


code = st.text("ab\n", max_size=200)


@given(code, code, st.lists(st.tuples(code, code), max_size=3), st.integers(8, 300), st.integers(8, 300))
def test_the_reply_has_its_room_whatever_the_sizes(prefix, suffix, files, context, batch):
    room = Room(context, batch, reply=context // 4)
    for marks in (ALL, FEW):
        before, laid = lay_out(Gap(prefix, suffix, "", files), room, marks, tokens)
        assert len(before) + len(laid) <= context - room.reply
        assert [laid.count(mark) for mark in (PRE, SUF, MID)] == [1, 1, 1]


def test_what_a_vocabulary_lacks_is_named():
    assert ALL.lacking == []
    assert Marks(-1, SUF, -1, REP, SEP, BOS).lacking == ["prefix", "middle"]


@pytest.mark.parametrize(
    ("template", "ends", "expected"),
    [
        (None, Ends(-1, -1, -1), [*b"qd"]),
        (None, Ends(1000, 1001, 1002), [1000, *b"q", 1001, 1002, *b"d", 1001]),
        ("<{query}|{document}>", Ends(1000, 1001, 1002), [*b"<q|d>"]),
    ],
)
def test_a_pair_is_laid_out_as_the_model_wants(template, ends, expected):
    assert pair("q", "d", template, ends, tokens) == expected


def test_a_query_that_names_a_place_of_the_template_is_text_like_any_other():
    assert pair("{document}", "d", "<{query}|{document}>", Ends(-1, -1, -1), tokens) == [*b"<{document}|d>"]
