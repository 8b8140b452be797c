"""From the configuration to the parts that say who clients are, and in whose name the server is asked.

Above: `assembly`. One of the places where concrete classes are named. Contract section 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from aiohttp import ClientSession
from anyio.abc import TaskStatus as StartStatus

from proxy.auth.challenges import Challenger, UrlMap
from proxy.auth.client_credentials import ClientCredentials, ClientSettings
from proxy.auth.gate import Gate, GatewayGate, TokenGate
from proxy.auth.keys import Keys
from proxy.auth.own_credential import OwnCredential
from proxy.auth.sources import FETCH_TIMEOUT_S, FileSource, fetch
from proxy.auth.spent import SpentTokens
from proxy.auth.tokens import TokenRules, TokenVerifier, claimed_owner
from proxy.clock import Clock
from proxy.config import Config
from proxy.downstream.admission import Admission
from proxy.owners import Credentials, Owner, owner_of
from proxy.routing.well_known import OwnMetadata
from proxy.stores.base import Store
from proxy.upstream.base import Verdicts

_FIRST_TOKEN_S: Final = FETCH_TIMEOUT_S + 1.0


@dataclass(frozen=True, slots=True)
class AuthParts:
    """`run` must be running. `verdicts` is told what the server says to what `credentials` gave it."""

    admission: Admission
    credentials: Credentials
    verdicts: Verdicts
    metadata: OwnMetadata | None
    keys: Keys | None = None
    tokens: ClientCredentials | None = None
    spent: SpentTokens | None = None

    def report(self) -> dict[str, str]:
        """For `/readyz`: what is there, and what is missing."""
        report = {}
        if self.keys is not None:
            report["issuer_keys"] = "ok" if self.keys.are_there else "could not be had yet"
        if self.tokens is not None:
            report["credential"] = self.tokens.words()
        return report

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Keep keys and token fresh. Started once our own token was asked for, and once it is known which
        tokens were refused."""
        async with anyio.create_task_group() as tasks:
            if self.spent is not None:
                await tasks.start(self.spent.run)
            if self.keys is not None:
                tasks.start_soon(self.keys.run)
            if self.tokens is not None:
                tasks.start_soon(self.tokens.run)
                with anyio.move_on_after(_FIRST_TOKEN_S):
                    await self.tokens.wait_tried()
            task_status.started()


def assemble_auth(
    config: Config, secret: bytes, client: ClientSession, clock: Clock, store: Store
) -> AuthParts:
    auth = config.auth
    metadata = _metadata(config)
    challenger = Challenger(config.public_url, auth.scopes if metadata is not None else ())
    leeway_s = auth.jwt.leeway if auth.jwt.is_on else 0.0
    keys = _keys(config, client, clock)
    gate = _gate(config, keys, challenger, secret, clock)
    spent = SpentTokens(
        challenger,
        clock,
        secret,
        store,
        leeway_s=leeway_s,
        whose=_whose(secret) if isinstance(gate, TokenGate) else None,
        owns=store.owns if gate is None else _may_own,
    )
    if not auth.is_own_resource and not auth.upstream.is_given:
        url = config.upstream.url
        urls = UrlMap(url, config.public_url) if url is not None and config.public_url is not None else None
        admission = Admission(gate, spent, urls)
        return AuthParts(admission, Credentials(spent.knows), spent, metadata, keys, spent=spent)
    tokens = _own_tokens(config, client, clock)
    own = OwnCredential(auth.upstream.headers, tokens)
    return AuthParts(Admission(gate, spent, None), own, own, metadata, keys, tokens)


def _keys(config: Config, client: ClientSession, clock: Clock) -> Keys | None:
    jwt = config.auth.jwt
    if jwt.jwks_url is not None:
        return Keys(partial(fetch, client, jwt.jwks_url), clock)
    if jwt.jwks_file is not None:
        return Keys(FileSource(Path(jwt.jwks_file).expanduser()).read, clock)
    return None


def _gate(
    config: Config, keys: Keys | None, challenger: Challenger, secret: bytes, clock: Clock
) -> Gate | None:
    jwt, gateway = config.auth.jwt, config.auth.gateway
    if jwt.issuer is not None and keys is not None:
        rules = TokenRules(jwt.issuer, config.audiences, jwt.algorithms, jwt.leeway)
        return TokenGate(TokenVerifier(rules, keys, secret, clock), challenger)
    if gateway.header is not None:
        return GatewayGate(gateway.header, gateway.trusted, secret)
    return None


def _whose(secret: bytes) -> Callable[[str], Owner]:
    """Of tokens that were verified: those of one subject are one owner's."""

    def whose(authorization: str) -> Owner:
        token = authorization.strip().partition(" ")[2].strip()
        return claimed_owner(token, secret) or owner_of(authorization, secret)

    return whose


def _may_own(owner: str) -> bool:
    """Whoever was let in by a gate may have tasks, or make some with another token; nobody is made up."""
    return True


def _own_tokens(config: Config, client: ClientSession, clock: Clock) -> ClientCredentials | None:
    given, url = config.auth.upstream, config.upstream.url
    if given.token_url is None or given.client_id is None or given.client_secret is None or url is None:
        return None
    settings = ClientSettings(
        given.token_url,
        given.client_id,
        given.client_secret,
        given.scopes,
        given.resource or urlsplit(url)._replace(query="").geturl(),
        in_form=given.client_auth == "post",
    )
    return ClientCredentials(settings, client, clock)


def _metadata(config: Config) -> OwnMetadata | None:
    """Where tokens are for us, whoever wants one is told where to get it. Where the server is a command they
    are for nobody else, whatever the mode."""
    auth = config.auth
    are_ours = auth.is_own_resource or config.upstream.command is not None
    if not are_ours or auth.jwt.issuer is None or config.public_url is None:
        return None
    return OwnMetadata(
        config.public_url, path=config.path, authorization_server=auth.jwt.issuer, scopes=auth.scopes
    )
