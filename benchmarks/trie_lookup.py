"""How long the prompt cache takes to match a long prompt: python -m benchmarks.trie_lookup

Conversations that share a head are known, each in segments of `chunk` tokens with a checkpoint every 8192; the prompt
is the longest of them plus a new turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from lcpd.cache.trie import Trie
from lcpd.engine.protocol import Tokens

GOAL_MS = 1.0


def known(
    conversations: int, length: int, prompt: int, chunk: int, rng: np.random.Generator
) -> tuple[Trie[str], Tokens]:
    """The trie, and the longest path in it."""
    trie: Trie[str] = Trie()
    head = rng.integers(0, 150_000, length // 2).astype(np.int32)
    longest = head
    for number in range(conversations):
        size = (prompt if number == 0 else length) - len(head)
        tokens = np.concatenate([head, rng.integers(0, 150_000, size).astype(np.int32)])
        tokens[len(head)] = number  # no two go on alike
        chain = trie.coverage(tokens)
        at = chain[-1][1] if chain else 0
        node = trie.insert(tokens[:at])
        for begin in range(at, len(tokens), chunk):
            # The first one ends with the head, so that no segment has to be cut.
            for part in np.split(tokens[begin : begin + chunk], [max(0, len(head) - begin)]):
                node = trie.attach(node, part, "segment") if len(part) else node
        for position in range(8192, len(tokens), 8192):
            trie.insert(tokens[:position]).checkpoint = "checkpoint"
        if number == 0:
            longest = tokens
    return trie, longest


def milliseconds(call: Callable[[], object], runs: int) -> list[float]:
    """What each of `runs` calls took, after one that does not count."""
    call()
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken


def main() -> int:
    """Measure, print, and exit with 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument(
        "--length", type=int, default=40_000, help="tokens of a known conversation, half of them the head"
    )
    parser.add_argument("--prompt", type=int, default=200_000, help="tokens of the prompt")
    parser.add_argument("--chunk", type=int, default=2048, help="tokens of a segment")
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    trie, longest = known(args.conversations, args.length, args.prompt, args.chunk, rng)
    prompt = np.concatenate([longest, rng.integers(0, 150_000, 500).astype(np.int32)])
    trie.check_integrity()
    assert trie.match(prompt).length == trie.coverage(prompt)[-1][1] == len(longest)

    print(f"{args.conversations} conversations, {sum(1 for _ in trie.nodes())} nodes, a prompt of {len(prompt)} tokens")
    medians = {}
    for name, call in (("match", trie.match), ("coverage", trie.coverage)):
        taken = milliseconds(partial(call, prompt), args.runs)
        medians[name] = statistics.median(taken)
        print(f"{name:9} median {medians[name]:.3f} ms, 95th percentile {np.percentile(taken, 95):.3f} ms")
    return int(medians["match"] > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
