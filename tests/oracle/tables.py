"""Prompts whose replies depend on what stands far back: a table, and the beginning of its repetition.

A model that goes on with the right state copies the table's next lines.  One that lost a part of it, or holds another
table's, cannot, so its reply lies far below the best one.
"""

from __future__ import annotations

import random

_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "hand", "part", "place", "case", "week", "company", "number", "point"),
    *("river", "stone", "cloud", "garden", "bridge", "window", "letter", "music", "horse", "winter", "summer"),
    *("paper", "glass", "silver", "kitchen", "doctor", "market", "engine", "island", "mountain", "forest", "morning"),
)


def table(seed: int, lines: int = 11) -> str:
    """`lines` random lines of about 7 tokens, and the first two of them once more."""
    draw = random.Random(seed)
    rows = [f"{draw.choice(_WORDS)} {draw.choice(_WORDS)}: {draw.randrange(10, 100)}" for _ in range(lines)]
    return "\n".join([*rows, "", *rows[:2]])
