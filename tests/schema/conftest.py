"""One daemon for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.servers import Server, ServerFailed
from schema_daemon import daemon

from lcpd.build import BuildMissing, require_active


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        require_active()
        with daemon(tmp_path_factory.mktemp("daemon")) as running:
            yield running
    except (BuildMissing, ServerFailed) as error:
        pytest.fail(str(error))
