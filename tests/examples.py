"""How long property tests look for a counterexample: with `LCPD_EXAMPLES=20` twenty times as long."""

from __future__ import annotations

import os


def examples(fast: int) -> int:
    """So many in the fast suite."""
    return fast * int(os.environ.get("LCPD_EXAMPLES", "1"))
