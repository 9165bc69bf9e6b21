"""What all steps' processes have in common: options in, findings out into a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from check_gpu.outcome import Findings


@dataclass(frozen=True)
class Options:
    """What a step is told."""

    backend: str
    """``cuda`` or ``cpu``."""
    pack: Path
    work: Path
    """For large files; kept between runs."""
    jobs: int | None
    result: Path
    build: str
    """Key of the build under test; empty for the build step itself."""

    @property
    def gpu(self) -> bool:
        return self.backend == "cuda"


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser()
    parse.add_argument("--backend", choices=("cuda", "cpu"), required=True)
    parse.add_argument("--pack", type=Path, required=True)
    parse.add_argument("--work", type=Path, required=True)
    parse.add_argument("--jobs", type=int)
    parse.add_argument("--result", type=Path, required=True)
    parse.add_argument("--build", default="")
    return parse


def run(step: Callable[[Options, Findings], None]) -> None:
    """Runs a step with the options of the command line; what it found is written only when it ends by itself."""
    options = Options(**vars(parser().parse_args()))
    findings = Findings()
    step(options, findings)
    options.result.write_text(json.dumps(findings.to_json()), encoding="utf-8")
