"""Tokenising by prefix: the same tokens as without it, for less work."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lcpd.chat.memo import TokenMemo, Tokens, common_prefix

SPECIALS = {1: "<s>", 2: "<|im_start|>", 3: "<|im_end|>", 4: "[INST]"}
_PIECES = ("aaa", "aa", "ab", "ba", " a", "  ", "<|", "|>", "é")
_CUT = re.compile("|".join(re.escape(text) for text in SPECIALS.values()))


class Toy:
    """Cuts at special tokens, and takes the longest piece that fits in between; counts what it was given."""

    def __init__(self, adds_bos: bool) -> None:
        self.adds_bos = adds_bos
        self.characters = 0

    def __call__(self, text: str, at_start: bool) -> Tokens:
        self.characters += len(text)
        tokens = [1] if self.adds_bos and at_start else []
        end = 0
        for match in _CUT.finditer(text):
            tokens += self._pieces(text[end : match.start()])
            tokens.append(next(token for token, special in SPECIALS.items() if special == match.group()))
            end = match.end()
        return np.array(tokens + self._pieces(text[end:]), np.int32)

    def _pieces(self, text: str) -> list[int]:
        tokens = []
        while text:
            size = max(3 if text[:3] in _PIECES else 0, 2 if text[:2] in _PIECES else 0, 1)
            tokens.append(100 + _PIECES.index(text[:size]) if size > 1 else 200 + ord(text[0]))
            text = text[size:]
        return tokens


class Memo(TokenMemo):
    """Over a Toy that puts one token in front; tells how much it spares it."""

    def __init__(self, **changes: int) -> None:
        self.toy = Toy(True)
        super().__init__(self.toy, SPECIALS, **changes)

    def spared(self, text: str, scope: int = 0, remember: bool = True) -> int:
        """How many characters of a text are not tokenised."""
        self.toy.characters = 0
        self.tokens(text, scope, remember)
        return len(text) - self.toy.characters


_BITS = st.sampled_from([*SPECIALS.values(), *_PIECES, "a", "b", "<", "<|im_", "start|>"])
_TEXT = st.lists(_BITS, max_size=8).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[str]:
    """Texts of which many begin as an earlier one does, up to any character."""
    texts = [draw(_TEXT)]
    for _ in range(draw(st.integers(1, 6))):
        earlier = draw(st.sampled_from(texts))
        texts.append(earlier[: draw(st.integers(0, len(earlier)))] + draw(_TEXT))
    return texts


@given(conversations(), st.booleans(), st.integers(1, 4))
@example(["<|im_start|>a", "<|im_start|>b"], True, 4)
@example(["<s>a<s>b", "<s>a<s>bb"], True, 4)
@example(["ab<s>", "ab<s>a"], True, 4)
def test_the_tokens_are_those_of_the_plain_tokeniser(texts: list[str], adds_bos: bool, capacity: int) -> None:
    memo = TokenMemo(Toy(adds_bos), SPECIALS, capacity)
    for text in texts:
        assert memo.tokens(text).tolist() == Toy(adds_bos)(text, True).tolist()


def chat(turns: int) -> str:
    return "<s>" + "".join(f"<|im_start|>turn {turn} aab<|im_end|>" for turn in range(turns))


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_longer_conversation_pays_only_for_what_follows_the_last_shared_special_token(adds_bos: bool) -> None:
    toy = Toy(adds_bos)
    memo = TokenMemo(toy, SPECIALS)
    memo.tokens(chat(50))
    toy.characters = 0
    memo.tokens(chat(51))
    assert toy.characters == len("<|im_end|>") + len("<|im_start|>turn 50 aab<|im_end|>")


def test_a_border_whose_special_token_is_not_wholly_shared_is_not_used() -> None:
    toy = Toy(False)
    memo = TokenMemo(toy, SPECIALS)
    memo.tokens("aaa<|im_start|>bb<|im_end|>")
    toy.characters = 0
    tokens = memo.tokens("aaa<|im_start|>bb<|im_")
    assert toy.characters == len("<|im_start|>bb<|im_")
    assert tokens.tolist() == Toy(False)("aaa<|im_start|>bb<|im_", True).tolist()


def test_the_same_text_again_is_not_tokenised_at_all() -> None:
    memo = Memo()
    memo.tokens(chat(3))
    assert memo.spared(chat(3)) == len(chat(3))


def test_a_text_that_shares_nothing_reuses_nothing() -> None:
    memo = Memo()
    memo.tokens(chat(3))
    assert memo.spared("other") == 0


def test_two_interleaved_conversations_are_both_remembered() -> None:
    memo = Memo()
    memo.tokens("A" + chat(5))
    memo.tokens("B" + chat(5))
    assert memo.spared("A" + chat(6)) > 0
    assert memo.spared("B" + chat(6)) > 0


def test_the_text_used_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    memo = Memo(capacity=2)
    memo.tokens("A" + chat(5))
    memo.tokens("B" + chat(5))
    memo.tokens("A" + chat(5))
    memo.tokens("C" + chat(5))
    assert memo.spared("A" + chat(6)) > 0
    assert memo.spared("B" + chat(6)) == 0


def test_texts_are_forgotten_when_they_are_too_long_together_but_the_newest_stays() -> None:
    text = chat(5)
    memo = Memo(max_chars=len(text) * 3 // 2)
    memo.tokens("A" + text)
    memo.tokens("B" + text)
    assert memo.spared("A" + chat(1)) == 0
    memo = Memo(max_chars=1)
    memo.tokens(text)
    assert memo.spared(chat(6)) > 0


@pytest.mark.parametrize("text", [chat(3), chat(4)])
def test_what_was_remembered_for_one_scope_is_not_used_for_another(text: str) -> None:
    memo = Memo()
    memo.tokens(chat(3), scope=1)
    assert memo.spared(text, scope=2) == 0
    assert memo.spared(chat(3), scope=1) > 0


def test_one_text_can_be_known_in_two_scopes_and_both_count_against_what_may_be_kept() -> None:
    text = chat(5)
    for capacity, max_chars in ((2, 10**6), (9, len(text) * 5 // 2)):
        memo = Memo(capacity=capacity, max_chars=max_chars)
        for scope in (1, 2):
            memo.tokens(text, scope)
        assert memo.spared(text, 1) == memo.spared(text, 2) > 0
        memo.tokens("other" + text, 3)
        assert (memo.spared(text, 2) > 0, memo.spared(text, 1)) == (True, 0)


def test_what_is_not_to_be_remembered_uses_what_is_known_and_leaves_no_trace() -> None:
    memo = Memo(capacity=2)
    memo.tokens(chat(3))
    memo.tokens("other")
    assert memo.spared(chat(3), remember=False) == len(chat(3))
    assert memo.tokens(chat(6), remember=False).tolist() == Toy(True)(chat(6), True).tolist()
    assert 0 < memo.spared(chat(6), remember=False) < len(chat(3))  # again, as it is not known
    memo.tokens("one more")
    assert memo.spared(chat(3)) == 0  # its turn to go had not been put off


@given(st.text("ab", max_size=20), st.text("ab", max_size=20), st.text("ab", max_size=40))
def test_the_common_prefix_of_two_texts_is_as_long_as_possible(a: str, b: str, head: str) -> None:
    a, b = head + a, head + b
    size = common_prefix(a, b)
    assert a[:size] == b[:size]
    assert size == min(len(a), len(b)) or a[size] != b[size]
