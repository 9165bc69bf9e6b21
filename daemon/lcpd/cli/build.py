"""``lcpd build``: compile llama.cpp and the bridge, list and remove builds."""

from __future__ import annotations

import signal
import sys

import click

from lcpd.build.gpu import BACKENDS
from lcpd.build.plan import LIBRARIES, TARGETS
from lcpd.build.record import BuildMissing, require_active

PRINTABLE = ("lib", "peer", "key")


@click.command()
@click.option("--source", metavar="DIR|git:COMMIT", help="Compile this llama.cpp instead of the pinned one.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    show_default=True,
    help="auto asks for a GPU and its driver.",
)
@click.option(
    "--cuda-arch", metavar="LIST", help="CUDA architectures, as 86 or 86,120; default: those of the cards found."
)
@click.option(
    "--cuda-toolkit",
    metavar="auto|system|pip|DIR",
    default="auto",
    show_default=True,
    help="The CUDA toolkit to compile with; pip assembles one from NVIDIA's wheels.",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default=LIBRARIES,
    show_default=True,
    help="llama-server: also build the peer for comparisons.",
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Compilers at once; default: by CPUs and free memory.")
@click.option("--force", is_flag=True, help="Build again even if up to date; with --remove: even a build in use.")
@click.option("--activate/--no-activate", default=True, help="Whether the finished build becomes the one in use.")
@click.option("--list", "show_list", is_flag=True, help="List the finished builds.")
@click.option("--remove", "remove_key", metavar="KEY", help="Delete a finished build.")
@click.option(
    "--print", "print_what", type=click.Choice(PRINTABLE), help="Print a path or the key of the active build."
)
def build(
    source: str | None,
    backend: str,
    cuda_arch: str | None,
    cuda_toolkit: str,
    target: str,
    jobs: int | None,
    force: bool,
    activate: bool,
    show_list: bool,
    remove_key: str | None,
    print_what: str | None,
) -> None:
    """Compile llama.cpp and lcpd's bridge for this machine, test the result and make it the one in use.

    Returns at once when that build exists already.  The builds before it are kept side by side, the newest three.
    """
    if print_what is not None:
        click.echo(_printable(print_what))
        return
    # Imported here: printing a path must stay quick, scripts call it often.
    from lcpd.build.builder import Request
    from lcpd.build.builder import build as run_build
    from lcpd.build.errors import BuildError
    from lcpd.build.report import reporter_for

    if show_list:
        _show_list()
        return
    # End the compilers too when someone ends us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    request = Request(source, backend, cuda_arch, cuda_toolkit, target, jobs, force, activate)
    try:
        if remove_key is not None:
            _remove(remove_key, force)
        else:
            run_build(request, reporter_for(sys.stdout))
    except BuildError as error:
        raise click.ClickException(str(error)) from error


def _printable(what: str) -> str:
    try:
        found = require_active()
    except BuildMissing as missing:
        raise click.ClickException(str(missing)) from missing
    if what == "key":
        return found.key
    if what == "lib":
        return str(found.lib_dir)
    if found.peer is None:
        raise click.ClickException(f"{found.key} has no llama-server; run: lcpd build --target llama-server")
    return str(found.peer)


def _show_list() -> None:
    from lcpd.build.store import Store, disk_usage
    from lcpd.paths import dirs

    store = Store(dirs().builds)
    builds = store.builds()
    if not builds:
        click.echo(f"no finished builds in {store.root}; run: lcpd build")
        return
    for found in builds:
        mark = "*" if found.key == store.active_key() else " "
        peer = " +llama-server" if found.peer is not None else ""
        click.echo(
            f"{mark} {found.key}  {disk_usage(found.path) / 1e6:.0f} MB  {found.created}  {found.cpu_level}"
            f"  {found.llama_cpp}{peer}"
        )
    trees = disk_usage(store.root / "trees")
    click.echo(f"(* in use; compile trees kept for quick changes: {trees / 1e6:.0f} MB)")


def _remove(key: str, force: bool) -> None:
    from lcpd.build.store import Store
    from lcpd.paths import dirs

    store = Store(dirs().builds)
    with store.locked(click.echo):
        store.remove(key, force=force)
    click.echo(f"removed {key}")
