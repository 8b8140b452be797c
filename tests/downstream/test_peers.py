"""Whose address a request has: that of the connection, or what a trusted gateway says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from proxy.downstream.peers import NOBODY, Peers

GATEWAYS = ("10.0.0.0/8", "fd00::/8")


class Transport:
    """As much of one as says who is there."""

    def __init__(self, remote: str | None) -> None:
        self._remote = remote

    def get_extra_info(self, key: str, default: object = None) -> object:
        known = key == "peername" and self._remote is not None
        return (self._remote, 1234) if known else default


def peer(remote: str | None, *told: str, trusted: Sequence[str] = GATEWAYS) -> str:
    headers = CIMultiDict([("X-Forwarded-For", value) for value in told])
    return Peers(trusted).of(make_mocked_request("POST", "/mcp", headers, transport=Transport(remote)))


def test_without_trusted_addresses_no_header_is_read() -> None:
    """Issue 6: nothing if not configured."""
    assert peer("192.0.2.1", "198.51.100.7", trusted=()) == "192.0.2.1"
    assert peer("10.0.0.1", "198.51.100.7", trusted=()) == "10.0.0.1"


def test_a_stranger_cannot_say_to_be_somebody_else() -> None:
    """T25-SEC-004: neither alone nor through a gateway, which puts the true address to the right."""
    assert peer("192.0.2.1", "198.51.100.7") == "192.0.2.1"
    assert peer("10.0.0.1", "198.51.100.7, 192.0.2.1") == "192.0.2.1"
    assert peer("10.0.0.1", "198.51.100.7", "192.0.2.1") == "192.0.2.1"


def test_gateways_before_gateways_are_passed_over() -> None:
    assert peer("10.0.0.1", "192.0.2.1, 10.9.9.9, fd00::1") == "192.0.2.1"
    assert peer("10.0.0.1", "10.0.0.2, 10.0.0.3") == "10.0.0.2"


@pytest.mark.parametrize("told", ["", "unknown", "_hidden", "192.0.2.1, what", "999.1.1.1", "\u0661.2.3.4"])
def test_what_is_no_address_leaves_the_gateway(told: str) -> None:
    assert peer("10.0.0.1", told) == "10.0.0.1"


@pytest.mark.parametrize(
    "told, said",
    [
        ("192.0.2.1:4711", "192.0.2.1"),
        ("[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_ports_are_left_out_and_an_ipv6_site_is_one_peer(told: str, said: str) -> None:
    assert peer("10.0.0.1", told) == said
    assert peer("fd00::5%eth0", told) == said


def test_a_connection_that_is_gone_is_nobodys() -> None:
    assert peer(None, "192.0.2.1") == NOBODY
