"""An OAuth 2.1 authorization server on loopback: registration, code with PKCE, refresh, client credentials.

Its user agrees to everything at once. Tokens are JWTs by joserfc; keys can be rotated, tokens revoked.
RFC 6749, 7591, 7636, 7662, 8414, 8707, 9207; Authorization 2026-07-28.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode

import anyio
from aiohttp import web
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet

PATH: Final = "/as"  # of the issuer; without one, some libraries add a slash and some do not
LIFETIME_S: Final = 600
USER: Final = "alice"
SECRET: Final = "client-secret-of-the-proxy"
CLIENT: Final = "the-proxy"


class AuthorizationServer:
    """`url` is its issuer. `asked` is what came of each client, in order. The first token of each client
    seems to it to be at its end."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
        self.jwks_asked = 0
        self.resources: set[str] = set()
        self.revoked: set[str] = set()
        self.weak: set[str] = set()
        self.is_away = False
        self._codes: dict[str, Mapping[str, str]] = {}
        self._refresh: dict[str, Mapping[str, str]] = {}
        self._made = 0
        self.keys: list[ECKey] = []
        self.rotate()

    def rotate(self, *, keep: bool = True) -> None:
        """Sign with a new key from now on; the old ones are still known, or not."""
        self._made += 1
        new = ECKey.generate_key("P-256", {"kid": f"key-{self._made}"})
        self.keys = [*(self.keys if keep else ()), new]

    def token(self, sub: str = USER, *, key: ECKey | None = None, **changes: Any) -> str:
        """A change to None takes a claim away."""
        signing, now = key or self.keys[-1], int(time.time())
        said = {"iss": self.url, "sub": sub, "aud": "a", "iat": now, "exp": now + LIFETIME_S, **changes}
        claims = {name: value for name, value in said.items() if value is not None}
        claims["jti"] = secrets.token_hex(4)  # no two are the same
        return jwt.encode({"alg": "ES256", "kid": signing.kid}, claims, signing, algorithms=["ES256"])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AuthorizationServer]:
        app = web.Application()
        app.router.add_get(f"/.well-known/oauth-authorization-server{PATH}", self._metadata)
        app.router.add_get(f"{PATH}/jwks", self._jwks)
        app.router.add_get(f"{PATH}/authorize", self._authorize)
        for path, handler in {
            "/register": self._register,
            "/token": self._token,
            "/introspect": self._introspect,
            "/revoke": self._revoke,
            "/weaken": self._weaken,
        }.items():
            app.router.add_post(PATH + path, handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _metadata(self, http: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "jwks_uri": f"{self.url}/jwks",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["none"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def _jwks(self, http: web.Request) -> web.Response:
        self.jwks_asked += 1
        if self.is_away:
            return web.Response(status=503)
        return web.json_response(dict(KeySet([*self.keys]).as_dict(private=False)))

    async def _register(self, http: web.Request) -> web.Response:
        client = f"client-{len(self.asked) + 1}"
        self.asked[client].append(("register",))
        return web.json_response({**await http.json(), "client_id": client}, status=201)

    async def _authorize(self, http: web.Request) -> web.Response:
        asked = dict(http.query)
        self.asked[asked["client_id"]].append(("authorize", asked.get("scope", "")))
        code = secrets.token_hex(8)
        self._codes[code] = asked
        told = urlencode({"code": code, "state": asked["state"], "iss": self.url})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{told}"})

    async def _token(self, http: web.Request) -> web.Response:
        if self.is_away:
            return web.Response(status=503)
        form = {name: str(value) for name, value in (await http.post()).items()}
        grant, client = form["grant_type"], form.get("client_id", CLIENT)
        was_asked = self.asked[client]
        was_asked.append(("token", grant))
        match grant:
            case "authorization_code":
                asked = self._codes.pop(form["code"], None)
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if asked is None or asked["code_challenge"] != proof or asked["resource"] != form["resource"]:
                    return _refused("invalid_grant")
                is_first = was_asked.count(("token", grant)) == 1
                return self._granted(asked, seems_to_live_s=0 if is_first else LIFETIME_S)
            case "refresh_token":
                known = self._refresh.pop(form["refresh_token"], None)  # each is good once
                return _refused("invalid_grant") if known is None else self._granted(known)
            case "client_credentials":
                pair = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                if http.headers.get("Authorization") != f"Basic {pair}":
                    return _refused("invalid_client", 401)
                return self._granted({**form, "sub": CLIENT})
            case _:
                return _refused("unsupported_grant_type")

    def _granted(self, asked: Mapping[str, str], seems_to_live_s: int = LIFETIME_S) -> web.Response:
        scope, refresh = asked.get("scope", ""), secrets.token_hex(8)
        self._refresh[refresh] = asked
        self.resources.add(asked["resource"])
        client = asked.get("client_id", CLIENT)
        token = self.token(asked.get("sub", USER), aud=asked["resource"], scope=scope, client_id=client)
        return web.json_response(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": seems_to_live_s,
                "refresh_token": refresh,
                "scope": scope,
            }
        )

    async def _introspect(self, http: web.Request) -> web.Response:
        token = str((await http.post())["token"])
        try:
            claims = jwt.decode(token, KeySet([*self.keys]), algorithms=["ES256"]).claims
        except (JoseError, ValueError):
            return web.json_response({"active": False})
        if token in self.revoked:
            return web.json_response({"active": False})
        scope = "basic" if token in self.weak else claims.get("scope", "")
        return web.json_response({"active": True, **claims, "scope": scope})

    async def _revoke(self, http: web.Request) -> web.Response:
        self.revoked.add(await self._named("revoke", http))
        return web.Response()

    async def _weaken(self, http: web.Request) -> web.Response:
        """Not of any RFC: the token loses its scopes."""
        self.weak.add(await self._named("weaken", http))
        return web.Response()

    async def _named(self, what: str, http: web.Request) -> str:
        token = str((await http.post())["token"])
        claims = jwt.decode(token, KeySet([*self.keys]), algorithms=["ES256"]).claims
        self.asked[claims["client_id"]].append((what,))
        return token


def _refused(error: str, status: int = 400) -> web.Response:
    return web.json_response({"error": error}, status=status)
