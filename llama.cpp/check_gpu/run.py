"""Runs the GPU check with nothing but Python: ``python3 llama.cpp/check_gpu/run.py``; docs/gpu.md describes it."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve()
    # In place of this script's own folder: lcpd and this package, neither of which need be installed.
    sys.path[0:1] = [str(here.parents[1]), str(here.parents[2] / "daemon")]
    from check_gpu.main import main

    sys.exit(main(sys.argv[1:]))
