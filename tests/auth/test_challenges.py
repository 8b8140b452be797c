"""Challenges and metadata under our public URL: what is the server's own address in them, and nothing else.

AUTH-005, AUTH-006; RFC 9728; field report F28.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.auth.challenges import Challenger, UrlMap, metadata_url

URLS = UrlMap("https://u.internal:9/mcp", "https://p.example/team/mcp")
THEIRS = "https://u.internal:9/.well-known/oauth-protected-resource"
OURS = "https://p.example/.well-known/oauth-protected-resource/team/mcp"


@pytest.mark.parametrize(
    "given, told",
    [
        (
            f'Bearer realm="r", error="invalid_token", scope="a b", resource_metadata="{THEIRS}/mcp"',
            f'Bearer realm="r", error="invalid_token", scope="a b", resource_metadata="{OURS}"',
        ),
        (f'Bearer resource_metadata="{THEIRS}"', f'Bearer resource_metadata="{OURS}"'),
        (f'Bearer resource_metadata="{THEIRS}/mcp/"', f'Bearer resource_metadata="{OURS}"'),
        (f"Bearer resource_metadata={THEIRS}/mcp, scope=a", f'Bearer resource_metadata="{OURS}", scope=a'),
        (f'Bearer Resource_Metadata = "{THEIRS}/mcp"', f'Bearer Resource_Metadata = "{OURS}"'),
        (
            f'DPoP algs="ES256", Bearer error="x",  resource_metadata="{THEIRS}/mcp" , Basic realm="b"',
            f'DPoP algs="ES256", Bearer error="x",  resource_metadata="{OURS}" , Basic realm="b"',
        ),
        (
            f'Bearer error="insufficient_scope", scope="files:write", resource_metadata="{THEIRS}/mcp"',
            f'Bearer error="insufficient_scope", scope="files:write", resource_metadata="{OURS}"',
        ),
        (
            f'A resource_metadata="{THEIRS}/mcp", B resource_metadata="{THEIRS}/mcp"',
            f'A resource_metadata="{OURS}", B resource_metadata="{OURS}"',
        ),
        (
            f'Bearer resource_metadata="HTTPS://U.internal:9{THEIRS[20:]}/mcp"',
            f'Bearer resource_metadata="{OURS}"',
        ),
        (
            f'Bearer resource_metadata="https:\\/\\/u.internal:9{THEIRS[20:]}/mcp"',
            f'Bearer resource_metadata="{OURS}"',
        ),
    ],
)
def test_the_metadata_are_found_under_the_public_url(given: str, told: str) -> None:
    """F28: all else is as it came, also where there are several challenges."""
    assert URLS.challenge(given) == told


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Negotiate dG9rZW4=",
        'Bearer realm="https://u.internal:9/mcp"',
        f'Bearer realm="x\\" resource_metadata={THEIRS}/mcp"',
        f'Bearer realm="resource_metadata={THEIRS}/mcp"',
        f'Bearer my_resource_metadata="{THEIRS}/mcp"',
        f'Bearer x-resource_metadata="{THEIRS}/mcp"',
        'Bearer resource_metadata="https://u.internal/.well-known/oauth-protected-resource/mcp"',
        'Bearer resource_metadata="http://u.internal:9/.well-known/oauth-protected-resource/mcp"',
        f'Bearer resource_metadata="{THEIRS}/other"',
        'Bearer resource_metadata="https://u.internal:9/meta.json"',
        'Bearer resource_metadata="https://as.example/.well-known/oauth-protected-resource/mcp"',
        'Bearer resource_metadata="https://[u/x"',
        'Bearer resource_metadata="https://u.internal:nine/x"',
        'Bearer resource_metadata="unended',
        "Bearer resource_metadata=",
    ],
)
def test_what_is_not_the_servers_own_metadata_is_left_as_it_came(value: str) -> None:
    assert URLS.challenge(value) == value


@given(st.text(alphabet='Bearer resource_metadata="\\,https://u.internal:9/.well-known ', max_size=200))
def test_any_text_is_a_challenge_or_left_alone(value: str) -> None:
    assert isinstance(URLS.challenge(value), str)


@pytest.mark.parametrize(
    "resource", ["https://u.internal:9/mcp", "https://u.internal:9", "https://u.internal:9/"]
)
def test_the_resource_is_named_as_clients_call_it(resource: str) -> None:
    """F28, AUTH-006: exactly, and the rest is as it came."""
    said = '"authorization_servers": ["https://u.internal:9/as"],  "resource" : '
    given = f'{{ {said}"{resource}", "x": 1.50}}'
    told = URLS.document(given.encode()).decode()
    assert json.loads(told) == {**json.loads(given), "resource": "https://p.example/team/mcp"}
    assert '"x": 1.50' in told


@pytest.mark.parametrize(
    "body",
    [
        b'{"resource":"https://p.example/team/mcp"}',
        b'{"resource":"https://elsewhere.example/mcp"}',
        b'{"resource":7}',
        b'{"resource":"https://[u"}',
        b"{}",
        b'["resource"]',
        b'"resource"',
        b"not found",
        b"",
        b"\xff",
        b'{"a":' + b"[" * 900,
    ],
)
def test_a_document_that_names_another_resource_or_none_is_left_as_it_came(body: bytes) -> None:
    assert URLS.document(body) == body


@pytest.mark.parametrize(
    "resource, url",
    [
        ("https://p.example/team/mcp", OURS),
        ("https://p.example/", "https://p.example/.well-known/oauth-protected-resource"),
        ("http://127.0.0.1:8080/mcp", "http://127.0.0.1:8080/.well-known/oauth-protected-resource/mcp"),
    ],
)
def test_the_metadata_of_a_resource_have_one_address(resource: str, url: str) -> None:
    """RFC 9728, section 3.1."""
    assert metadata_url(resource) == url


def test_a_challenge_of_ours_says_what_is_known() -> None:
    assert Challenger(None).challenge() == "Bearer"
    assert Challenger(None).challenge("e", "d") == 'Bearer error="e", error_description="d"'
