"""Challenges and metadata as clients see them, who know us by our public URL.

Above: `gate` and `spent`, for challenges of our own; `downstream` and `routing.well_known`, for those of the
server, whose own address is put right in them. RFC 6750; RFC 9728, sections 3 and 5.1; contract section 8;
field report F28.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from proxy.protocol.envelope import JsonError, RawObject, check, dumps, splice

METADATA: Final = "/.well-known/oauth-protected-resource"
RESOURCE: Final = "resource"

_MAX_DEPTH: Final = 32
_PORTS: Final = {"http": 80, "https": 443}
_QUOTED: Final = r'"(?:[^"\\]|\\.)*+"'
_METADATA_PARAM: Final = re.compile(
    rf"{_QUOTED}|(?<![\w!#$%&'*+.^`|~-])(resource_metadata\s*=\s*)({_QUOTED}|[^\s,]+)", re.IGNORECASE
)
"""What is in quotes is a value of something else, whatever it looks like."""


@dataclass(frozen=True, slots=True)
class Challenger:
    """Makes our own challenges. `public_url` is what clients call us, None where that is not known."""

    public_url: str | None
    scopes: Sequence[str] = ()

    def challenge(self, error: str | None = None, description: str = "") -> str:
        """`description` is plain ASCII without quotes. Without `error`: there was no token at all."""
        params = {} if error is None else {"error": error, "error_description": description}
        if self.public_url is not None:
            params["resource_metadata"] = metadata_url(self.public_url)
        if self.scopes:
            params["scope"] = " ".join(self.scopes)
        return "Bearer" + ",".join(f' {name}="{value}"' for name, value in params.items())


@dataclass(frozen=True, slots=True)
class UrlMap:
    """From the server's address to ours."""

    upstream_url: str
    public_url: str

    def challenge(self, value: str) -> str:
        """A `WWW-Authenticate` value; nothing but the address of the metadata changes in it."""
        return _METADATA_PARAM.sub(self._param, value)

    def _param(self, found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name is None:
            return found[0]
        given = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        mapped = self._metadata(given)
        return found[0] if mapped == given else f'{name}"{mapped}"'

    def _metadata(self, url: str) -> str:
        parts = _split(url)
        if parts is None or not self._is_upstreams(parts):
            return url
        kind, _, of = parts.path.removeprefix("/.well-known/").partition("/")
        path = f"/{of}".rstrip("/")
        if f"/.well-known/{kind}" != METADATA or path not in (
            "",
            urlsplit(self.upstream_url).path.rstrip("/"),
        ):
            return url
        return metadata_url(self.public_url)

    def document(self, body: bytes) -> bytes:
        """A metadata document: its resource is what the client calls, where it was the server's own."""
        try:
            check(body, _MAX_DEPTH)
            resource = RawObject.parse(body).text(RESOURCE) if body.lstrip()[:1] == b"{" else None
        except (JsonError, ValueError):
            return body
        parts = None if resource is None else _split(resource)
        if parts is None or not self._is_upstreams(parts):
            return body
        return splice(body, {RESOURCE: dumps(self.public_url)})

    def _is_upstreams(self, parts: SplitResult) -> bool:
        return _origin(parts) == _origin(urlsplit(self.upstream_url))


def metadata_url(resource: str) -> str:
    """Where the metadata of a resource is (RFC 9728, section 3.1)."""
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{METADATA}{parts.path.rstrip('/')}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
