"""Who is at the other end: the address that a request came from, by the word of gateways that are trusted.

Above: `http`, which counts failed look-ups by it. `X-Forwarded-For` is read from the right: what stands left
of the first address that is not trusted was written by whoever that is. Contract section 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from aiohttp import web

NOBODY: Final = "unknown"
_FORWARDED_FOR: Final = "X-Forwarded-For"
_ONE_SITE: Final = 64  # bits of an IPv6 address that its owner cannot choose

Address: TypeAlias = IPv4Address | IPv6Address


class Peers:
    """`trusted`: addresses or networks of the gateways before us. Nobody else's headers are read."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._trusted = tuple(ip_network(network) for network in trusted)

    def of(self, http: web.Request) -> str:
        """The address, or for IPv6 its network of one site."""
        found = _address_in(http.remote or "")
        if found is None:
            return NOBODY
        if self._is_trusted(found):
            values = ",".join(http.headers.getall(_FORWARDED_FOR, ())).split(",")
            found = self._before(found, reversed(values))
        return _site_of(found)

    def _before(self, gateway: Address, told: Iterable[str]) -> Address:
        """Who came to us through `gateway`, and the gateways before it."""
        for text in told:
            address = _address_in(text.strip())
            if address is None:
                break
            gateway = address
            if not self._is_trusted(address):
                break
        return gateway

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def _address_in(text: str) -> Address | None:
    """With or without a port; an IPv4 address that is written as IPv6 is one."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _site_of(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(ip_network((address, _ONE_SITE), strict=False))
