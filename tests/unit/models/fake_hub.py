"""A server that imitates the file API of the Hugging Face hub, with the failures that downloads meet."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "maker/model-GGUF"


@dataclass
class Asked:
    """One request for a file's content."""

    path: str
    range: str | None
    authorization: str | None
    host: str


@dataclass
class FakeHub:
    """One repository.  The fields may be changed between requests."""

    files: dict[str, bytes]
    wrong_content: set[str] = field(default_factory=set)
    """Paths of which other bytes are served than their checksum says."""
    without_lfs: set[str] = field(default_factory=set)
    cuts: list[int] = field(default_factory=list)
    """For each of the next downloads: the bytes after which the connection is cut."""
    failures: list[int] = field(default_factory=list)
    """HTTP statuses that answer the downloads after those of ``cuts``."""
    gated: bool = False
    """Whether files need the token ``secret``."""
    ignore_ranges: bool = False
    asked: list[Asked] = field(default_factory=list)
    endpoint: str = ""
    elsewhere: str = ""
    """The address of the content server, another host than ``endpoint`` as the real hub has."""

    async def model(self, request: web.Request) -> web.Response:
        if request.match_info["repository"] != REPOSITORY:
            return web.json_response(
                {"error": "Repository not found"}, status=404, headers={"X-Error-Code": "RepoNotFound"}
            )
        return web.json_response({"id": REPOSITORY, "sha": COMMIT, "siblings": []})

    async def tree(self, request: web.Request) -> web.Response:
        entries: list[dict[str, object]] = [{"type": "directory", "path": "a-folder", "oid": "0" * 40}]
        for path, content in self.files.items():
            entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
            if path not in self.without_lfs:
                oid = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        return web.json_response(entries)

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        if self.gated and request.headers.get("Authorization") != "Bearer secret":
            return web.json_response(
                {"error": "Access is restricted"}, status=401, headers={"X-Error-Code": "GatedRepo"}
            )
        return web.Response(status=302, headers={"Location": f"{self.elsewhere}/{request.match_info['path']}"})

    async def content(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        headers = request.headers
        self.asked.append(Asked(path, headers.get("Range"), headers.get("Authorization"), request.host))
        content = self.files[path]
        if path in self.wrong_content:
            content = bytes(255 - byte for byte in content)
        wanted = headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not self.ignore_ranges else 0
        if not self.cuts and self.failures:
            return web.Response(status=self.failures.pop(0))
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(content) - start
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        await response.prepare(request)
        if self.cuts:
            await response.write(content[start : start + self.cuts.pop(0)])
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(content[start:])
        return response


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve ``hub`` from a thread; its addresses are set while it runs."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_get("/api/models/{repository:[^/]+/[^/]+}", hub.model)
    app.router.add_get("/api/models/{repository:[^/]+/[^/]+}/tree/{revision}", hub.tree)
    app.router.add_get("/{repository:[^/]+/[^/]+}/resolve/{revision}/{path:.+}", hub.resolve)
    app.router.add_get("/content/{path:.+}", hub.content)
    runner = web.AppRunner(app, access_log=None)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    port = loop.run_until_complete(start())
    hub.endpoint, hub.elsewhere = f"http://127.0.0.1:{port}", f"http://localhost:{port}/content"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield hub
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
