"""The documentation stays true where a machine can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lcpd.metrics.reference import reference

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_metrics_page_is_what_the_code_defines():
    assert (ROOT / "docs/metrics.md").read_text() == reference()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    # Paths in backticks that begin with a folder of the repository or of the package.
    folders = "daemon|api|engine|chat|scheduler|native|ipc|tests|docs|config|systemd|benchmarks|llama\\.cpp"
    for path in re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / path).exists() or (ROOT / "daemon/lcpd" / path).exists(), path
