"""The OAuth flow of the official Python SDK 2.x, which asks as a modern client first.

    oauth_sdk2.py URL AUTHORIZATION_SERVER

Runs in the environment of tests/venvs/sdk2.txt; prints one JSON line a step. Its user agrees at once.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


class InMemory:
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def main(*said: str) -> None:
    url, authorization_server = said
    storage = InMemory()
    came_back: dict[str, str] = {}

    async def visit(address: str) -> None:
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address, follow_redirects=False)
        came_back.update({k: v[0] for k, v in parse_qs(urlsplit(answer.headers["Location"]).query).items()})

    async def return_code() -> AuthorizationCodeResult:
        return AuthorizationCodeResult.model_validate(came_back)

    async def at_server(path: str) -> None:
        assert storage.tokens is not None
        async with httpx2.AsyncClient() as admin:
            await admin.post(f"{authorization_server}/{path}", data={"token": storage.tokens.access_token})

    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="test",
            redirect_uris=["http://127.0.0.1:1/callback"],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",
        ),
        storage=storage,
        redirect_handler=visit,
        callback_handler=return_code,
    )
    async with (
        httpx2.AsyncClient(auth=provider, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):

        async def whoami() -> str:
            result = await client.call_tool("whoami", {})
            return "".join(block.text for block in result.content)

        say("initialized", version=client.protocol_version)
        say("tools", names=[tool.name for tool in (await client.list_tools()).tools])
        say("called", text=await whoami())
        await at_server("weaken")
        say("stepped up", text=await whoami())
        await at_server("revoke")
        say("authorized again", text=await whoami())
        metadata = provider.context.protected_resource_metadata
        assert metadata is not None
        assert storage.client is not None
        print(storage.client.client_id, metadata.resource, file=sys.stderr)
    say("ended")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
