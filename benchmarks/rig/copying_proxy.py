"""The measure: an HTTP proxy that only copies bytes, as short as aiohttp allows. No part of it knows MCP.

python -m benchmarks.rig.copying_proxy PORT UPSTREAM_URL
"""

from __future__ import annotations

import sys
from typing import Final

import aiohttp
from aiohttp import web

ONE_HOP: Final = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class CopyingProxy:
    def __init__(self, upstream_url: str) -> None:
        self._url = upstream_url

    async def start(self, app: web.Application) -> None:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def copy(self, http: web.Request) -> web.StreamResponse:
        headers = [(key, value) for key, value in http.headers.items() if key.lower() not in ONE_HOP]
        async with self._client.post(self._url, data=await http.read(), headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            for key, value in answer.headers.items():
                if key.lower() not in ONE_HOP or key == "Content-Length":
                    response.headers.add(key, value)
            await response.prepare(http)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response


if __name__ == "__main__":
    proxy, app = CopyingProxy(sys.argv[2]), web.Application()
    app.on_startup.append(proxy.start)
    app.router.add_post("/mcp", proxy.copy)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
