"""The check's package lies beside the native code, not in lcpd."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from lcpd.paths import native_recipe


@pytest.fixture(autouse=True, scope="session")
def check_gpu_importable() -> Iterator[None]:
    folder = str(native_recipe())
    sys.path.append(folder)
    yield
    sys.path.remove(folder)
