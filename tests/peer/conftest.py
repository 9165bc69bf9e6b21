"""The two servers, started once for each model and flash-attention setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.servers import Equal, ServerFailed, run_lcpd, run_peer
from peer_pair import Pair

from lcpd.build import BuildMissing, require_active
from lcpd.models import ModelMissing, resolve
from lcpd.paths import dirs


@pytest.fixture(scope="session")
def peer_binary() -> Path:
    try:
        peer = require_active().peer
    except BuildMissing as error:
        pytest.fail(str(error))
    if peer is None:
        pytest.fail("the active build has no llama-server; run: lcpd build --target llama-server")
    return peer


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, peer_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Parametrised indirectly with a model reference and a flash-attention setting."""
    ref, flash_attn = request.param
    try:
        model = resolve(ref, dirs())
    except ModelMissing as error:
        pytest.fail(str(error))
    equal = Equal(
        model=model,
        # One thread each: two servers with spinning threads on the same cores would slow each other down.
        threads=1,
        environment={"OMP_NUM_THREADS": "1"},
        ctx=1024,
        batch=256,
        ubatch=128,
        flash_attn=flash_attn,
    )
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        try:
            lcpd = stack.enter_context(run_lcpd(equal, folder))
            peer = stack.enter_context(run_peer(equal, peer_binary, folder))
        except ServerFailed as error:
            pytest.fail(str(error))
        yield Pair(lcpd, peer, equal.batch)
