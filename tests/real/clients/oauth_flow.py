"""What the OAuth flows of both official Python SDKs have in common; runs in the environment of either.

The user agrees at once. One JSON line is printed a step; at the end, on stderr, what the client was
registered as and what it takes for its resource.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken


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


class User:
    """`browser` is the HTTP client of the SDK; `returned` makes what the SDK wants of what came back."""

    def __init__(
        self, url: str, authorization_server: str, browser: Any, returned: Callable[[dict[str, str]], Any]
    ) -> None:
        self._authorization_server = authorization_server
        self._browser = browser
        self._returned = returned
        self._storage = InMemory()
        self._came_back: dict[str, str] = {}
        self.provider = OAuthClientProvider(
            server_url=url,
            client_metadata=OAuthClientMetadata(
                client_name="test",
                redirect_uris=["http://127.0.0.1:1/callback"],
                grant_types=["authorization_code", "refresh_token"],
                response_types=["code"],
                token_endpoint_auth_method="none",
            ),
            storage=self._storage,
            redirect_handler=self._visit,
            callback_handler=self._return_code,
        )

    async def _visit(self, address: str) -> None:
        async with self._browser() as browser:
            answer = await browser.get(address, follow_redirects=False)
        came_back = parse_qs(urlsplit(answer.headers["Location"]).query)
        self._came_back = {name: values[0] for name, values in came_back.items()}

    async def _return_code(self) -> Any:
        return self._returned(self._came_back)

    async def _at_server(self, path: str) -> None:
        token = self._storage.tokens
        assert token is not None
        async with self._browser() as admin:
            await admin.post(f"{self._authorization_server}/{path}", data={"token": token.access_token})

    async def call_with_each_token(self, whoami: Callable[[], Awaitable[str]]) -> None:
        """With the first one, with one that is good for too little, and with one that was taken back."""
        say("called", text=await whoami())
        await self._at_server("weaken")
        say("stepped up", text=await whoami())
        await self._at_server("revoke")
        say("authorized again", text=await whoami())
        metadata = self.provider.context.protected_resource_metadata
        assert metadata is not None
        assert self._storage.client is not None
        print(self._storage.client.client_id, metadata.resource, file=sys.stderr)
