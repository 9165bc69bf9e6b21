"""Novel tokens: what no earlier prompt or reply had as prefix."""

from __future__ import annotations

import numpy as np
from benchmarks.agentic_count import Known, with_reply

from lcpd.cache.trie import common_prefix
from lcpd.engine.protocol import Tokens


def tokens(*ids: int) -> Tokens:
    return np.array(ids, np.int32)


def test_the_first_prompt_is_novel_altogether() -> None:
    assert Known().novel(tokens(1, 2, 3)) == 3


def test_tokens_behind_the_longest_known_prefix_are_novel() -> None:
    known = Known()
    known.add(tokens(1, 2, 9, 9, 9, 9))
    known.add(tokens(1, 2, 3, 4))
    assert known.novel(tokens(1, 2, 3, 4, 5, 6)) == 2


def test_the_same_text_behind_another_beginning_is_novel() -> None:
    known = Known()
    known.add(tokens(1, 2, 3, 4))
    assert known.novel(tokens(7, 2, 3, 4)) == 4


def test_the_last_token_of_a_known_prompt_is_computed_again() -> None:
    known = Known()
    known.add(tokens(1, 2, 3))
    assert known.novel(tokens(1, 2, 3)) == 1


def test_a_common_head_of_prompts_sent_at_once_counts_once() -> None:
    known = Known()
    counts = []
    for prompt in (tokens(1, 2, 3, 10), tokens(1, 2, 3, 20), tokens(1, 2, 3, 30)):
        counts.append(known.novel(prompt))
        known.add(prompt)
    assert counts == [4, 1, 1]


def test_the_common_prefix_of_a_prompt_and_its_beginning_is_the_beginning() -> None:
    assert common_prefix(tokens(1, 2, 3), tokens(1, 2)) == 2


def test_a_reply_is_known_up_to_the_token_that_was_never_decoded() -> None:
    decoded = with_reply(tokens(1, 2), continued=tokens(1, 2, 5, 6, 7, 8, 9), generated=3)
    assert decoded.tolist() == [1, 2, 5, 6]


def test_a_reply_that_the_template_renders_elsewhere_is_unknown() -> None:
    assert with_reply(tokens(1, 2), continued=tokens(1, 3, 5, 6), generated=3).tolist() == [1, 2]
