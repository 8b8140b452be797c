"""Who may talk to us: Host, Origin, and what a browser is told."""

from __future__ import annotations

from typing import Final

import pytest

from proxy.downstream.guard import EXPOSED, Guard
from proxy.errors import AccessDenied

LOOPBACK: Final = Guard(True, frozenset(), frozenset())
PUBLIC: Final = Guard(
    False,
    frozenset({"mcp.example.com", "[2001:db8::1]", "tight.example.com:8443"}),
    frozenset({"https://app.example.com"}),
)
OPEN: Final = Guard(False, frozenset(), frozenset())
BEHIND_A_PROXY: Final = Guard(True, frozenset({"mcp.example.com"}), frozenset({"https://app.example.com"}))


def passes(guard: Guard, host: str | None, origin: str | None = None) -> bool:
    try:
        guard.check(host, () if origin is None else (origin,))
    except AccessDenied as fault:
        return fault.http_status != 403
    return True


# Host (F29, SEC-001).


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost",
        "localhost:9999",
        "localhost:",
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.8.9.10",
        "[::1]",
        "[::1]:8080",
        "[0:0:0:0:0:0:0:1]:8080",
    ],
)
def test_on_loopback_every_name_of_this_machine_passes(host: str) -> None:
    """SEC-001: at any port, since a forwarded port is another one."""
    assert passes(LOOPBACK, host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        ":8080",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:80@evil.example",
        "evil.example#localhost",
        "localhost:x",
        "127.0.0.1, evil.example",
        "0.0.0.0",
        "10.0.0.1",
        "[::]",
        "[fe80::1]:8080",
        "[::1]evil.example",
        "[::1",
        "::1:8080:1",
        "127.1",
        "2130706433",
        "mcp.example.com",
        "local\udcffhost",
    ],
)
def test_on_loopback_every_other_host_is_refused(host: str | None) -> None:
    """SEC-001: a page whose name was rebound to this machine still sends its own name."""
    assert not passes(LOOPBACK, host)


@pytest.mark.parametrize(
    "host, may",
    [
        ("mcp.example.com", True),
        ("MCP.Example.com:443", True),
        ("[2001:db8::1]", True),
        ("[2001:DB8::1]:8443", True),
        ("tight.example.com:8443", True),
        ("tight.example.com", False),
        ("tight.example.com:443", False),
        ("evil.mcp.example.com", False),
        ("mcp.example.com.evil.example", False),
        ("localhost", False),
        ("127.0.0.1:8080", False),
        (None, False),
    ],
)
def test_named_hosts_pass_and_no_others(host: str | None, may: bool) -> None:
    """SEC-001: a name without a port stands for every port, one with a port for that port."""
    assert passes(PUBLIC, host) is may


@pytest.mark.parametrize("host", ["evil.example", "", None, "10.0.0.1:8080"])
def test_an_open_bind_without_names_takes_any_host(host: str | None) -> None:
    """Contract section 11: Host is checked on a loopback bind, or where `allowed_hosts` is set."""
    assert passes(OPEN, host)


def test_a_loopback_bind_behind_a_proxy_takes_both_names() -> None:
    assert passes(BEHIND_A_PROXY, "mcp.example.com")
    assert passes(BEHIND_A_PROXY, "127.0.0.1:8080")
    assert not passes(BEHIND_A_PROXY, "evil.example")


# Origin (HTTP-002, SEC-001).


@pytest.mark.parametrize("guard", [LOOPBACK, BEHIND_A_PROXY, OPEN])
def test_who_sends_no_origin_is_no_browser_and_passes(guard: Guard) -> None:
    """HTTP-002."""
    assert passes(guard, "localhost", None)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:5173",
        "https://LOCALHOST:3000",
        "http://127.0.0.1:6274",
        "http://[::1]:6274",
    ],
)
def test_pages_of_this_machine_pass_on_a_loopback_bind_alone(origin: str) -> None:
    """HTTP-002, contract section 11."""
    assert passes(LOOPBACK, "localhost", origin)
    assert not passes(OPEN, "localhost", origin)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "localhost",
        "//localhost",
        "file://localhost",
        "file://",
        "chrome-extension://localhost",
        "http://localhost.evil.example",
        "http://localhost/",
        "http://localhost?x",
        "http://evil.example@localhost",
        "http://localhost:80@evil.example",
        "http://evil.example#localhost",
        "http://[::1",
        "http://[",
        "http://]",
        "http://[evil]",
        "http://[::1%\udcff]",
        "http://localhost\udcff",
        "http://localho\u017ft",
        "http://localhost\u2100",
        "http:// localhost",
        "http://localhost, http://evil.example",
        "https://app.example.com",
    ],
)
@pytest.mark.parametrize("guard", [LOOPBACK, OPEN])
def test_every_other_origin_is_refused(guard: Guard, origin: str) -> None:
    """HTTP-002, SEC-001: 403 also for what is no origin at all, never a fault of ours."""
    assert not passes(guard, "localhost", origin)
    assert guard.cors_headers([origin]) == []


@pytest.mark.parametrize("guard", [PUBLIC, BEHIND_A_PROXY])
@pytest.mark.parametrize(
    "origin, may",
    [
        ("https://app.example.com", True),
        ("http://app.example.com", False),
        ("https://app.example.com:8443", False),
        ("https://app.example.com/", False),
        ("https://evil.app.example.com", False),
    ],
)
def test_allowed_origins_pass_exactly(guard: Guard, origin: str, may: bool) -> None:
    """HTTP-002."""
    assert passes(guard, "mcp.example.com", origin) is may


def test_the_host_is_judged_before_the_origin() -> None:
    with pytest.raises(AccessDenied, match="allowed_hosts"):
        LOOPBACK.check("evil.example", ["https://evil.example"])
    with pytest.raises(AccessDenied, match="allowed_origins"):
        LOOPBACK.check("localhost", ["https://evil.example"])


@pytest.mark.parametrize("other", ["https://app.example.com", "https://evil.example", "null", ""])
def test_a_request_of_two_pages_is_refused(other: str) -> None:
    """HTTP-002, SEC-001: also where one, or each, of them might pass, in either order."""
    for origins in (["https://app.example.com", other], [other, "https://app.example.com"]):
        with pytest.raises(AccessDenied, match="allowed_origins"):
            PUBLIC.check("mcp.example.com", origins)
        assert PUBLIC.cors_headers(origins) == []


# CORS (F30).


def test_an_allowed_page_may_read_what_it_needs_and_every_header_stands_once() -> None:
    """F30: never `*`; the session, the challenge, the version and when to come back can be read."""
    headers = PUBLIC.cors_headers(["https://app.example.com"])
    assert headers == [
        ("Access-Control-Allow-Origin", "https://app.example.com"),
        ("Access-Control-Expose-Headers", EXPOSED),
        ("Vary", "Origin"),
    ]
    assert {name.strip() for name in EXPOSED.split(",")} == {
        "Mcp-Session-Id",
        "WWW-Authenticate",
        "MCP-Protocol-Version",
        "Retry-After",
    }


def test_no_page_no_cors() -> None:
    assert PUBLIC.cors_headers(()) == []


REQUESTED: Final = (
    "authorization,content-type,mcp-protocol-version,mcp-session-id,last-event-id,mcp-method,mcp-name,"
    "mcp-param-region"
)


def preflight(requested: str) -> tuple[set[str], set[str]]:
    """Allowed methods and headers."""
    headers = PUBLIC.preflight_headers(requested)
    assert len({name.lower() for name, _ in headers}) == len(headers)
    assert "access-control-allow-origin" not in {name.lower() for name, _ in headers}
    told = dict(headers)
    methods, names = told["Access-Control-Allow-Methods"], told["Access-Control-Allow-Headers"]
    return {m.strip() for m in methods.split(",")}, {n.strip() for n in names.split(",")}


def test_a_preflight_allows_every_method_and_header_of_the_protocol() -> None:
    """F30."""
    methods, names = preflight(REQUESTED)
    assert methods == {"GET", "POST", "DELETE"}
    assert set(REQUESTED.split(",")) <= names


@pytest.mark.parametrize("name", ["mcp-param-region", "Mcp-Param-Tenant-Id", " MCP-PARAM-x "])
def test_a_preflight_allows_any_mirrored_parameter(name: str) -> None:
    """F30: their names are the tools' own."""
    assert name.strip().lower() in preflight(name)[1]


@pytest.mark.parametrize(
    "requested", ["", ",,", "x-evil, cookie", "mcp-param-a b", "mcp-param-\udcff", "x-mcp-param-a"]
)
def test_a_preflight_allows_nothing_else(requested: str) -> None:
    assert preflight(requested)[1] == preflight("")[1]
