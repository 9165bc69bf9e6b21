"""Starting a child and opening the channel to it, as both the worker's and the chat process's owner do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lcpd.ipc.channel import DaemonChannel
from lcpd.ipc.child import Child, spawn


async def launch(
    command: list[str],
    environment: Mapping[str, str],
    log_lines: int,
    incoming: Any,
    echo: bool = False,
    descriptors: Sequence[int] = (),
) -> tuple[Child, DaemonChannel[Any]]:
    """A child (see `spawn`) and our end of its channel, which takes `incoming` messages.

    The child gets copies of `descriptors` in `ChildChannel.descriptors`, in order, before it gets the first message;
    ours stay open.  Raises OSError when the command cannot be started or a descriptor is not open; no process is left
    then.
    """
    child = await spawn(command, environment, log_lines, echo)
    try:
        return child, await DaemonChannel.open(child.sock, incoming, descriptors)
    except BaseException:
        child.sock.close()
        await child.kill()
        raise
