"""The OAuth flow of the official Python SDK 2.x, which asks as a modern client first.

    python -m tests.real.clients.oauth_sdk2 URL AUTHORIZATION_SERVER

Runs in the environment of tests/venvs/sdk2.txt; `oauth_flow` says what is printed.
"""

from __future__ import annotations

import sys

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult

from tests.real.clients.oauth_flow import User, say


async def main(url: str, authorization_server: str) -> None:
    user = User(url, authorization_server, httpx2.AsyncClient, AuthorizationCodeResult.model_validate)
    async with (
        httpx2.AsyncClient(auth=user.provider, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):

        async def whoami() -> str:
            result = await client.call_tool("whoami", {})
            return "".join(block.text for block in result.content)

        say("initialized", version=client.protocol_version)
        say("tools", names=[tool.name for tool in (await client.list_tools()).tools])
        await user.call_with_each_token(whoami)
    say("ended")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
