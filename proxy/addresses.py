"""Addresses as people write them: `127.0.0.1:8080`, URLs, origins, host names, paths.

Above: `config` alone, as the types of its fields. Contract section 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator

_LOOPBACK: Final = "127.0.0.1"

STDIO: Final = "stdio"
"""Instead of an address: the client is at our stdin and stdout."""

_HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("HOST:PORT is needed, such as 127.0.0.1:8080")
    if not host:
        raise ValueError(f"say which host: 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for the network")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address goes in brackets, such as [::1]:8080")
    return value


def _host_and_port_or_stdio(value: str) -> str:
    return value if value == STDIO else _host_and_port(value)


def _url_path(value: str) -> str:
    if not value.startswith("/") or any(c in value for c in "?#{} ") or not value.isprintable():
        raise ValueError("a path is needed, such as /mcp")
    path = value.rstrip("/") or "/"
    if path in _HEALTH_PATHS:
        raise ValueError("that path is taken by the health checks")
    return path


def _split_url(value: str) -> SplitResult:
    if not value.isprintable() or " " in value or "\\" in value:
        raise ValueError("that is not a URL")
    try:
        parts = urlsplit(value)
        port_is_wrong = parts.port == 0
    except ValueError:
        raise ValueError("that is not a URL") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port_is_wrong:
        raise ValueError("an http:// or https:// URL is needed")
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong in a URL: they would be logged")
    if parts.fragment:
        raise ValueError("a URL without # is needed")
    return parts


def _checked_url(value: str) -> str:
    _split_url(value)
    return value


def _plain_url(value: str) -> str:
    if _split_url(value).query:
        raise ValueError("a URL without ? is needed")
    return value


def _origin(value: str) -> str:
    parts = _split_url(value)
    if parts.path or parts.query:
        raise ValueError("an origin is needed, such as https://app.example.com: no path")
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def _host(value: str) -> str:
    try:
        is_name = urlsplit(f"//{value}").netloc == value
    except ValueError:  # half a bracket
        is_name = False
    if not value or not is_name or any(c in value for c in "@* \\") or not value.isprintable():
        raise ValueError("a host name is needed, with or without port, such as mcp.example.com")
    return value.lower()


def _network(value: str) -> str:
    try:
        return str(ip_network(value, strict=False))
    except ValueError:
        raise ValueError("an IP address or a network is needed, such as 10.0.0.7 or 10.0.0.0/8") from None


def file_path(value: str) -> str:
    """Raises ValueError for what `Path.expanduser` cannot expand."""
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError("it begins with the home of a user that there is not") from None
    return value


HostPort: TypeAlias = Annotated[str, AfterValidator(_host_and_port)]
"""Where to listen; an IPv6 address stands in brackets."""

ListenAddress: TypeAlias = Annotated[str, AfterValidator(_host_and_port_or_stdio)]
"""Where clients are: an address, or `stdio`."""

UrlPath: TypeAlias = Annotated[str, AfterValidator(_url_path)]
"""An absolute path, without its last slash."""

HttpUrl: TypeAlias = Annotated[str, AfterValidator(_checked_url)]
"""http or https, without credentials and fragment."""

PlainUrl: TypeAlias = Annotated[str, AfterValidator(_plain_url)]
"""As `HttpUrl`, without a query too."""

Origin: TypeAlias = Annotated[str, AfterValidator(_origin)]
"""As browsers send it: lower case, no default port."""

HostName: TypeAlias = Annotated[str, AfterValidator(_host)]
"""As in a Host header, in lower case, with or without port."""

Network: TypeAlias = Annotated[str, AfterValidator(_network)]
"""IP addresses: one, or those of a network."""


FilePath: TypeAlias = Annotated[str, AfterValidator(file_path)]
"""Of a file or directory; it may begin with `~`."""


def are_all_addresses(networks: Iterable[str]) -> bool:
    """Whether these have every address of IPv4, or of IPv6, in them."""
    given = [ip_network(network) for network in networks]
    of_4 = collapse_addresses(one for one in given if isinstance(one, IPv4Network))
    of_6 = collapse_addresses(one for one in given if isinstance(one, IPv6Network))
    return any(one.prefixlen == 0 for one in of_4) or any(one.prefixlen == 0 for one in of_6)


def are_in_conflict(one: str, other: str) -> bool:
    """Whether nobody can listen at both of these addresses; those with port 0 never are."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if int(port) == 0 or int(port) != int(other_port):
        return False
    try:
        ours, theirs = (
            ip_address(_LOOPBACK if h == "localhost" else h.strip("[]")) for h in (host, other_host)
        )
    except ValueError:  # names
        return host == other_host
    any_of_theirs = ours.version == theirs.version and (ours.is_unspecified or theirs.is_unspecified)
    return ours == theirs or any_of_theirs


def is_loopback_name(name: str) -> bool:
    """Whether a host, a host with a port, or a URL names this machine alone."""
    try:
        host = urlsplit(name if "://" in name else f"//{name}").hostname or name
    except ValueError:
        return False
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
