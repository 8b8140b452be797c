"""The OAuth flow of the official Python SDK 1.x, from no token at all to a token that was taken back.

    python -m tests.real.clients.oauth_sdk1 URL AUTHORIZATION_SERVER

Runs in the environment of tests/venvs/sdk1.txt; `oauth_flow` says what is printed.
"""

from __future__ import annotations

import sys

import anyio
import httpx  # of the SDK
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.real.clients.oauth_flow import User, say


async def main(url: str, authorization_server: str) -> None:
    def returned(came_back: dict[str, str]) -> tuple[str, str | None]:
        return came_back["code"], came_back["state"]

    user = User(url, authorization_server, httpx.AsyncClient, returned)
    async with (
        httpx.AsyncClient(auth=user.provider, timeout=30) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):

        async def whoami() -> str:
            result = await session.call_tool("whoami", {})
            return "".join(block.text for block in result.content if block.type == "text")

        say("initialized", server=(await session.initialize()).serverInfo.name)
        say("tools", names=[tool.name for tool in (await session.list_tools()).tools])
        await user.call_with_each_token(whoami)
    say("ended")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
