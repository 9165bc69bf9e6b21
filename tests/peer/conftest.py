"""The two servers, started once for each model and setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from benchmarks.servers import Equal, ServerFailed, run_lcpd, run_peer
from peer_pair import Pair
from peer_requests import SETUPS, Setup

from lcpd.build import BuildMissing, require_active
from lcpd.build.pin import load_pin
from lcpd.build.source import TEMPLATES, identify, location
from lcpd.models import ModelMissing, resolve
from lcpd.paths import dirs, native_recipe


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
    with _running(_equal(ref, flash_attn, 1024), peer_binary, tmp_path_factory.mktemp("servers")) as both:
        yield both


@pytest.fixture(scope="module")
def api_pair_of(peer_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pair]]:
    """The servers of a set-up; those of another one are ended first."""
    with ExitStack() as stack:
        running: dict[str, Pair] = {}

        def pair_of(name: str) -> Pair:
            if name not in running:
                running.clear()
                stack.close()
                folder = tmp_path_factory.mktemp(name)
                flags = ("--no-cache-prompt",)
                running[name] = stack.enter_context(_running(_equal_of(SETUPS[name]), peer_binary, folder, flags))
            return running[name]

        yield pair_of


def _equal_of(setup: Setup) -> Equal:
    settings = {"LCPD_MODEL__ALIAS": "it", "LLAMA_ARG_ALIAS": "it"}
    if setup.template:
        template = str(_templates() / f"{setup.template}.jinja")
        settings |= {"LCPD_MODEL__CHAT_TEMPLATE_FILE": template, "LLAMA_ARG_CHAT_TEMPLATE_FILE": template}
    return _equal(setup.model, "off", 2048, **settings)


def _equal(ref: str, flash_attn: str, ctx: int, **environment: str) -> Equal:
    try:
        model = resolve(ref, dirs())
    except ModelMissing as error:
        pytest.fail(str(error))
    return Equal(
        model=model,
        # One thread each: two servers with spinning threads on the same cores would slow each other down.
        threads=1,
        environment={"OMP_NUM_THREADS": "1", **environment},
        ctx=ctx,
        batch=256,
        ubatch=128,
        flash_attn=flash_attn,
    )


@contextmanager
def _running(equal: Equal, peer_binary: Path, folder: Path, flags: tuple[str, ...] = ()) -> Iterator[Pair]:
    with ExitStack() as stack:
        try:
            lcpd = stack.enter_context(run_lcpd(equal, folder))
            peer = stack.enter_context(run_peer(equal, peer_binary, folder, flags))
        except ServerFailed as error:
            pytest.fail(str(error))
        yield Pair(lcpd, peer, equal.batch)


def _templates() -> Path:
    """llama.cpp's chat templates, which came with its source."""
    pin = load_pin(native_recipe())
    folder = location(identify(None, pin), pin, dirs().cache) / TEMPLATES
    if not folder.is_dir():
        pytest.fail(f"there are no chat templates in {folder}; run: lcpd build --target llama-server")
    return folder
