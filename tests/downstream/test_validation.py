"""Whether a POST is a modern request that we serve: each fault alone, and which of two decides.

The contract's order of judgement (section 3) is walked as a table. Unknown methods, missing capabilities and
`Mcp-Param-*` come after all that is judged here; the router and the bridge see to them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import pytest

from proxy.downstream.base import message_of_fault
from proxy.downstream.posted import read_posted
from proxy.downstream.validation import Headers, Rejection, read_message
from proxy.errors import HTTP_STATUS, ErrorCode
from proxy.owners import ANONYMOUS
from proxy.protocol.envelope import dumps, loads
from proxy.protocol.jsonrpc import Notification
from proxy.protocol.names import MODERN_VERSIONS, NAME_MEMBER
from proxy.routing.base import ClientRequest

MODERN: Final = "2026-07-28"
VERSION: Final = "io.modelcontextprotocol/protocolVersion"
INFO: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
MAX_DEPTH: Final = 64
ID: Final = b'"r\\u00e9q-1"'


@dataclass
class Draft:
    """A good request, until a fault is put into it."""

    method: str = "tools/call"
    id: bytes | None = ID
    params: dict[str, Any] = field(default_factory=lambda: {"name": "train", "arguments": {}})
    meta: dict[str, Any] = field(default_factory=lambda: {VERSION: MODERN, CAPABILITIES: {}})
    headers: dict[str, str] = field(
        default_factory=lambda: {
            "mcp-protocol-version": MODERN,
            "mcp-method": "tools/call",
            "mcp-name": "train",
        }
    )
    jsonrpc: bytes = b'"jsonrpc":"2.0",'
    extra: bytes = b""
    finish: Callable[[bytes], bytes] = bytes

    def body(self) -> bytes:
        head = b"{" + self.jsonrpc + (b"" if self.id is None else b'"id":' + self.id + b",")
        params = dumps({**self.params, "_meta": self.meta})
        tail = b'"method":' + dumps(self.method) + b',"params":' + params + self.extra + b"}"
        return self.finish(head + tail)


def judge(body: bytes, headers: Headers | dict[str, str]) -> ClientRequest | Notification:
    if isinstance(headers, dict):
        headers = Headers(list(headers.items()))
    versions = [value for key, value in headers.values if key == "mcp-protocol-version"]
    [message] = read_posted(body, versions, MAX_DEPTH).messages
    return read_message(message, headers, ANONYMOUS, MODERN_VERSIONS)


def served(draft: Draft) -> ClientRequest:
    request = judge(draft.body(), draft.headers)
    assert isinstance(request, ClientRequest)
    return request


def refused(body: bytes, headers: Headers | dict[str, str]) -> tuple[int, int, bytes | None]:
    """Status, code and raw id of the answer to a message that is refused."""
    with pytest.raises(Rejection) as raised:
        judge(body, headers)
    rid, fault = raised.value.rid, raised.value.fault
    answer = loads(message_of_fault(rid, fault))
    assert answer["jsonrpc"] == "2.0"
    assert answer["error"]["message"]
    assert ("id" in answer) == (rid is not None)
    return fault.http_status, answer["error"]["code"], rid.raw if rid is not None else None


def test_a_good_request_is_served_with_what_the_router_needs() -> None:
    """BASE-020: no clientInfo is needed."""
    draft = Draft()
    draft.meta["progressToken"] = "p-1"
    draft.meta[LOG_LEVEL] = "warning"
    draft.headers["mcp-param-region"] = "us-west1"
    request = served(draft)
    assert (request.id.raw, request.method, request.owner) == (ID, "tools/call", ANONYMOUS)
    assert (request.progress_token, request.log_level) == (b'"p-1"', "warning")
    assert request.param_headers == {"region": "us-west1"}
    assert request.params.raw == dumps({**draft.params, "_meta": draft.meta})


# The order of judgement.


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. `shows_id`: whether the id can still be read."""

    name: str
    code: int
    put_into: Callable[[Draft], None]
    shows_id: bool = True


def finishing(finish: Callable[[bytes], bytes]) -> Callable[[Draft], None]:
    def put(draft: Draft) -> None:
        draft.finish = finish

    return put


def setting(attribute: str, value: object) -> Callable[[Draft], None]:
    def put(draft: Draft) -> None:
        setattr(draft, attribute, value)

    return put


def header(name: str, value: str | None) -> Callable[[Draft], None]:
    def put(draft: Draft) -> None:
        draft.headers.pop(name)
        if value is not None:
            draft.headers[name] = value

    return put


def meta(name: str, value: object = None) -> Callable[[Draft], None]:
    def put(draft: Draft) -> None:
        draft.meta.pop(name)
        if value is not None:
            draft.meta[name] = value

    return put


def unserved(draft: Draft) -> None:
    draft.meta[VERSION] = draft.headers["mcp-protocol-version"] = "2027-01-01"


def too_deep(raw: bytes) -> bytes:
    return raw[:-1] + b',"x":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"


ORDER: Final[tuple[tuple[Fault, ...], ...]] = (
    (
        Fault("truncated", -32700, finishing(lambda raw: raw[:-1]), shows_id=False),
        Fault("two texts", -32700, finishing(lambda raw: raw + raw), shows_id=False),
        Fault("not UTF-8", -32700, finishing(lambda raw: raw[:-1] + b',"x":"\xff"}'), shows_id=False),
        Fault("too deep", -32700, finishing(too_deep), shows_id=False),
    ),
    (
        Fault("no jsonrpc", -32600, setting("jsonrpc", b"")),
        Fault("jsonrpc 1.0", -32600, setting("jsonrpc", b'"jsonrpc":"1.0",')),
        Fault("jsonrpc twice", -32600, setting("jsonrpc", b'"jsonrpc":"2.0","jsonrpc":"2.0",')),
        Fault("id null", -32600, setting("id", b"null"), shows_id=False),
        Fault("id twice", -32600, setting("extra", b',"id":1'), shows_id=False),
        Fault("method twice", -32600, setting("extra", b',"method":"tools/call"')),
        Fault("params twice", -32600, setting("extra", b',"params":{}')),
        Fault("a result too", -32600, setting("extra", b',"result":{}')),
    ),
    (
        Fault("no version in _meta", -32602, meta(VERSION)),
        Fault("no capabilities", -32602, meta(CAPABILITIES)),
        Fault("capabilities of a wrong type", -32602, meta(CAPABILITIES, [])),
    ),
    (
        Fault("no version header", -32020, header("mcp-protocol-version", None)),
        Fault("another modern version header", -32020, header("mcp-protocol-version", "2026-12-31")),
        Fault("a legacy version header", -32020, header("mcp-protocol-version", "2025-11-25")),
    ),
    (Fault("a version that we do not serve", -32022, unserved),),
    (
        Fault("no Mcp-Method", -32020, header("mcp-method", None)),
        Fault("another Mcp-Method", -32020, header("mcp-method", "Tools/Call")),
    ),
    (
        Fault("no Mcp-Name", -32020, header("mcp-name", None)),
        Fault("another Mcp-Name", -32020, header("mcp-name", "Train")),
    ),
)
"""The stages of contract section 3 that are judged here, first to last."""

LEGACY_HINTS: Final = ("no version header", "a legacy version header")
"""Without a version in `_meta` these make the message a legacy one, so they are no second fault of it."""

PAIRS: Final = [
    (first, second)
    for at, stage in enumerate(ORDER)
    for later in ORDER[at + 1 :]
    for first, second in product(stage, later)
    if not (first.name == "no version in _meta" and second.name in LEGACY_HINTS)
]


@pytest.mark.parametrize("fault", [f for stage in ORDER for f in stage], ids=lambda f: f.name)
def test_each_fault_has_its_code_and_echoes_the_id_that_it_could_read(fault: Fault) -> None:
    """BASE-001, BASE-002, BASE-003, BASE-009, BASE-019, HTTP-016, HTTP-019, HTTP-020, VER-001: always 400."""
    draft = Draft()
    if fault.name == "no version in _meta":
        assert draft.headers["mcp-protocol-version"] == MODERN  # a modern message by its header
    fault.put_into(draft)
    assert refused(draft.body(), draft.headers) == (400, fault.code, ID if fault.shows_id else None)


@pytest.mark.parametrize("first, second", PAIRS, ids=lambda f: f.name)
def test_of_two_faults_the_first_in_the_contracts_order_decides(first: Fault, second: Fault) -> None:
    """BASE-009: neighbours, and all other pairs too."""
    draft = Draft()
    second.put_into(draft)
    first.put_into(draft)
    if second.name == "a version that we do not serve" and first.code == -32020:
        draft.meta[VERSION] = "2027-01-01"
    assert refused(draft.body(), draft.headers) == (400, first.code, ID if first.shows_id else None)


def test_all_faults_at_once_are_the_first() -> None:
    """BASE-009."""
    draft = Draft()
    for stage in reversed(ORDER):
        stage[0].put_into(draft)
    assert refused(draft.body(), draft.headers) == (400, -32700, None)


@pytest.mark.parametrize(
    "spoil",
    [
        header("mcp-protocol-version", None),
        meta(CAPABILITIES),
        header("mcp-method", "tools/list"),
        unserved,
    ],
)
@pytest.mark.parametrize(
    "member, twice",
    [
        (b"params", b'"name":"train","name":"train"'),
        (b"params", b'"arguments":{},"arguments":{}'),
        (b"_meta", b'"progressToken":1,"progressToken":2'),
    ],
)
def test_a_member_that_we_read_given_twice_is_a_fault_of_the_envelope(
    spoil: Callable[[Draft], None], member: bytes, twice: bytes
) -> None:
    """BASE-001: it comes before whatever is judged by that member."""
    draft = Draft(params={}, finish=doubled(member, twice))
    spoil(draft)
    assert refused(draft.body(), draft.headers) == (400, -32600, ID)


def test_contradicting_version_headers_come_after_the_required_meta() -> None:
    draft = Draft()
    both = Headers([*draft.headers.items(), ("mcp-protocol-version", "2025-11-25")])
    assert refused(draft.body(), both) == (400, -32020, ID)
    del draft.meta[CAPABILITIES]
    assert refused(draft.body(), both) == (400, -32602, ID)


# Ids (F17).


@pytest.mark.parametrize(
    "raw",
    [
        b"0", b"-1", b"1", b'"1"', b'""', b'"0"', b"1774232524389", b"9007199254740993", b"-0",
        '"ünï"'.encode(), b'"\\u00fc"', b'"\\ud83d"', b'"' + b"x" * 10_000 + b'"', b"9" * 1_000,
    ],
)  # fmt: skip
def test_a_valid_id_comes_back_byte_for_byte(raw: bytes) -> None:
    """BASE-003, BASE-005: strings and integers, with type and spelling, served or refused."""
    draft = Draft(id=raw)
    assert served(draft).id.raw == raw
    del draft.headers["mcp-method"]
    assert refused(draft.body(), draft.headers) == (400, -32020, raw)


@pytest.mark.parametrize(
    "raw", [b"null", b"1.5", b"1.0", b"1e3", b"true", b"false", b"[]", b"[1]", b"{}", b"9" * 1_001]
)
def test_any_other_id_is_refused_and_never_taken_for_a_notification(raw: bytes) -> None:
    """BASE-003: no 202, no id in the answer."""
    assert refused(Draft(id=raw).body(), Draft().headers) == (400, -32600, None)


# Messages that are none (F19, F20).

GOOD: Final = Draft().body()


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"[1]", b" [ ]", b"[" + GOOD + b"]", b"[" + GOOD + b"," + GOOD + b"]",
        b'"tools/call"', b"7", b"null", b"true", b"{}",
        b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","params":{}}',
    ],
)  # fmt: skip
def test_what_is_not_one_message_is_refused_without_an_id(body: bytes) -> None:
    """HTTP-005: no batches in the modern era, empty or not."""
    assert refused(body, Draft().headers) == (400, -32600, None)


@pytest.mark.parametrize(
    "body", [b"", b" ", b"\xef\xbb\xbf{}", b"{", b"NaN", b"{'a':1}", b'{"a":01}', b'{"a":1,}']
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    """BASE-002."""
    assert refused(body, Draft().headers) == (400, -32700, None)


@pytest.mark.parametrize("method", [b"null", b"7", b"[]", b"{}"])
def test_a_method_that_is_no_string_is_refused(method: bytes) -> None:
    """BASE-001."""
    body = b'{"jsonrpc":"2.0","id":' + ID + b',"method":' + method + b"}"
    assert refused(body, Draft().headers) == (400, -32600, ID)


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}',
    ],
)
def test_a_posted_response_is_refused(body: bytes) -> None:
    """HTTP-005: nobody asked, since no request ever goes to a modern client."""
    assert refused(body, Draft().headers)[:2] == (400, -32600)


@pytest.mark.parametrize("params", [None, b"{}", b"null", b"[]", b"0"])
def test_a_notification_needs_no_answer_whatever_it_holds(params: bytes | None) -> None:
    """BASE-015: an unknown one too, without any header."""
    tail = b"" if params is None else b',"params":' + params
    message = judge(b'{"jsonrpc":"2.0","method":"notifications/x"' + tail + b"}", {})
    assert message == Notification("notifications/x", params)


@pytest.mark.parametrize(
    "params", [None, b"null", b"[]", b"0", b'"x"', b"true", b"{}", b'{"_meta":null}', b'{"_meta":[]}']
)
def test_params_without_the_required_meta_are_answered_and_never_swallowed(params: bytes | None) -> None:
    """BASE-019 (F19): missing, null and of a wrong type."""
    tail = b"" if params is None else b',"params":' + params
    body = b'{"jsonrpc":"2.0","id":' + ID + b',"method":"tools/list"' + tail + b"}"
    assert refused(body, {"mcp-protocol-version": MODERN, "mcp-method": "tools/list"}) == (400, -32602, ID)


WRONG_VERSIONS: Final[tuple[object, ...]] = (None, 7, [], {}, True)
WRONG_CAPABILITIES: Final[tuple[object, ...]] = (None, 7, [], "x", {"roots": True}, {"extensions": []})


@pytest.mark.parametrize(
    "name, value", [*product([VERSION], WRONG_VERSIONS), *product([CAPABILITIES], WRONG_CAPABILITIES)]
)
def test_required_meta_of_a_wrong_type_is_malformed(name: str, value: object) -> None:
    """BASE-019."""
    draft = Draft()
    draft.meta[name] = value
    assert refused(draft.body(), draft.headers) == (400, -32602, ID)


# Duplicates (BASE-001).


def doubled(member: bytes, text: bytes) -> Callable[[bytes], bytes]:
    """Put `text` before the first member of `params` or `_meta`."""
    return lambda raw: raw.replace(b'"' + member + b'":{', b'"' + member + b'":{' + text + b",", 1)


@pytest.mark.parametrize(
    "method, member, text",
    [
        ("tools/call", b"params", b'"_meta":{}'),
        ("tools/call", b"params", b'"name":"train"'),
        ("tools/call", b"params", b'"n\\u0061me":"other"'),
        ("tools/call", b"params", b'"requestState":"a","requestState":"a"'),
        ("tools/call", b"params", b'"inputResponses":{},"inputResponses":{}'),
        ("prompts/get", b"params", b'"name":"train"'),
        ("resources/read", b"params", b'"uri":"train"'),
        ("tasks/get", b"params", b'"taskId":"train"'),
        ("tasks/update", b"params", b'"inputResponses":{},"inputResponses":{}'),
        ("tasks/cancel", b"params", b'"taskId":"train"'),
        ("subscriptions/listen", b"params", b'"notifications":{},"notifications":{}'),
        ("tools/list", b"_meta", b'"%s":"2026-07-28"' % VERSION.encode()),
        ("tools/list", b"_meta", b'"%s":{}' % CAPABILITIES.encode()),
        ("tools/list", b"_meta", b'"%s":"info","%s":"info"' % ((LOG_LEVEL.encode(),) * 2)),
        ("tools/list", b"_meta", b'"progressToken":1,"progressToken":2'),
        ("tools/list", b"_meta", b'"%s":{"roots":{},"roots":{}}' % CAPABILITIES.encode()),
    ],
)
def test_a_member_that_we_read_must_not_stand_twice(method: str, member: bytes, text: bytes) -> None:
    """BASE-001."""
    draft = for_method(method)
    if b"roots" in text:
        del draft.meta[CAPABILITIES]
    draft.finish = doubled(member, text)
    assert refused(draft.body(), draft.headers) == (400, -32600, ID)


@pytest.mark.parametrize(
    "member, text",
    [
        (b"arguments", b'"a":1,"a":2'),
        (b"params", b'"x-vendor":1,"x-vendor":2'),
        (b"params", b'"uri":"a","uri":"b"'),
        (b"_meta", b'"traceparent":"00-a","traceparent":"00-b"'),
        (b"_meta", b'"%s":{},"%s":{}' % ((INFO.encode(),) * 2)),
    ],
)
def test_duplicates_elsewhere_pass_as_they_came(member: bytes, text: bytes) -> None:
    """BASE-001, BASE-023."""
    draft = Draft(params={"name": "train", "arguments": {"z": 0}})
    draft.finish = doubled(member, text)
    assert text in served(draft).params.raw


# Versions.


@pytest.mark.parametrize("asked", ["2025-11-25", "2024-11-05", "1.0"])
@pytest.mark.parametrize("sent", [None, "2025-06-18"])
def test_a_legacy_initialize_is_told_which_version_is_served(asked: str, sent: str | None) -> None:
    """VER-001: -32022, with what was asked for."""
    headers = {} if sent is None else {"mcp-protocol-version": sent}
    body = dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {"protocolVersion": asked, "capabilities": {}},
        }
    )
    assert refused(body, headers) == (400, -32022, b"1")
    assert unsupported(body, headers) == {"supported": [MODERN], "requested": asked}


@pytest.mark.parametrize("sent, requested", [(None, "2025-03-26"), ("2025-11-25", "2025-11-25")])
def test_other_legacy_requests_are_refused_by_their_version(sent: str | None, requested: str) -> None:
    """VER-001, VER-020."""
    headers = {} if sent is None else {"mcp-protocol-version": sent}
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    assert refused(body, headers) == (400, -32022, b"1")
    assert unsupported(body, headers) == {"supported": [MODERN], "requested": requested}


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05", "2027-01-01", "1900-01-01", "", "v999"])
def test_a_version_in_meta_that_we_do_not_serve_is_named(version: str) -> None:
    """VER-001, VER-003: a legacy version in `_meta` too."""
    draft = Draft()
    draft.meta[VERSION] = draft.headers["mcp-protocol-version"] = version
    assert refused(draft.body(), draft.headers) == (400, -32022, ID)
    assert unsupported(draft.body(), draft.headers) == {"supported": [MODERN], "requested": version}


def unsupported(body: bytes, headers: dict[str, str]) -> Any:
    with pytest.raises(Rejection) as raised:
        judge(body, headers)
    return raised.value.fault.data


def test_a_modern_initialize_is_judged_by_modern_rules() -> None:
    """VER-005, BASE-019: and then it is an unknown method, which the router says."""
    draft = for_method("initialize")
    assert served(draft).method == "initialize"
    del draft.meta[CAPABILITIES]
    assert refused(draft.body(), draft.headers) == (400, -32602, ID)


def test_each_request_is_judged_alone() -> None:
    """VER-003, BASE-016: what an earlier one declared does not count."""
    declaring, silent = Draft(), Draft()
    declaring.meta[CAPABILITIES] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert [served(d).capabilities.tasks for d in (declaring, silent, declaring)] == [True, False, True]


# Headers.


def for_method(method: str) -> Draft:
    """A good request of any method."""
    draft = Draft(method=method, params={})
    draft.headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    if method in NAME_MEMBER:
        draft.params[NAME_MEMBER[method]] = draft.headers["mcp-name"] = "train"
    return draft


NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
TASKS: Final = {"tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}


@pytest.mark.parametrize("method, member", [*NAMED.items(), *TASKS.items()])
@pytest.mark.parametrize(
    "sent", ["", "other", "=?base64?b3RoZXI=?=", "=?base64?!?=", "=?BASE64?dHJhaW4=?=", "\udcff"]
)
def test_the_name_header_equals_the_body(method: str, member: str, sent: str) -> None:
    """HTTP-020, HTTP-021, TX-HDR-001: plain or encoded."""
    draft = for_method(method)
    assert draft.params == {member: "train"}
    served(draft)
    draft.headers["mcp-name"] = "=?base64?dHJhaW4=?="
    served(draft)
    draft.headers["mcp-name"] = sent
    assert refused(draft.body(), draft.headers) == (400, -32020, ID)


@pytest.mark.parametrize("method", NAMED)
def test_the_name_header_is_required(method: str) -> None:
    """HTTP-020."""
    draft = for_method(method)
    del draft.headers["mcp-name"]
    assert refused(draft.body(), draft.headers) == (400, -32020, ID)


@pytest.mark.parametrize("method", TASKS)
def test_a_task_method_is_served_without_a_name_header(method: str) -> None:
    """The one leniency towards TX-HDR-001: FastMCP 4 never sends it, and would have no tasks at all."""
    draft = for_method(method)
    del draft.headers["mcp-name"]
    served(draft)
    del draft.headers["mcp-method"]
    assert refused(draft.body(), draft.headers) == (400, -32020, ID)


@pytest.mark.parametrize("name", ["ünï", " padded ", "a\nb", "=?base64?x?="])
def test_a_name_that_no_header_can_carry_comes_encoded(name: str) -> None:
    """HTTP-021."""
    draft = Draft()
    draft.params["name"] = name
    draft.headers["mcp-name"] = f"=?base64?{base64_of(name)}?="
    assert served(draft).params.text("name") == name


def base64_of(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.mark.parametrize("params", [{}, {"name": None}, {"name": 7}, {"name": ["train"]}])
@pytest.mark.parametrize("sent", [None, "train"])
def test_where_the_body_has_no_name_the_params_decide(params: dict[str, Any], sent: str | None) -> None:
    """Contract section 3: upstream says what is wrong with them, not the header check."""
    draft = Draft(params=params)
    header("mcp-name", sent)(draft)
    assert served(draft).params.text("name") is None


@pytest.mark.parametrize("method", ["tools/list", "server/discover", "foo/bar"])
def test_a_method_without_a_name_needs_no_name_header(method: str) -> None:
    """HTTP-020."""
    draft = for_method(method)
    draft.headers["mcp-name"] = "whatever"
    assert served(draft).method == method


def test_values_compare_with_case_and_without_the_space_around_them() -> None:
    """HTTP-019."""
    draft = Draft()
    draft.headers["mcp-method"] = " tools/call\t"
    served(draft)
    draft.headers["mcp-method"] = "TOOLS/CALL"
    assert refused(draft.body(), draft.headers) == (400, -32020, ID)


@pytest.mark.parametrize("name", ["mcp-protocol-version", "mcp-method", "mcp-name"])
def test_a_header_given_twice_must_say_the_same(name: str) -> None:
    """HTTP-016, HTTP-019, HTTP-020: whoever routes by one of two must not be misled."""
    draft = Draft()
    same = [*draft.headers.items(), (name, draft.headers[name])]
    assert isinstance(judge(draft.body(), Headers(same)), ClientRequest)
    other = [*draft.headers.items(), (name, "other")]
    assert refused(draft.body(), Headers(other)) == (400, -32020, ID)


def test_mirrored_parameters_given_twice_are_one_list() -> None:
    """RFC 9110: so that the second value cannot hide behind the first."""
    values = [("mcp-param-a", "x"), ("mcp-param-a", "y"), ("mcp-param-b", "z"), ("mcp-param-b", " z ")]
    assert Headers([*values, ("mcp-paramount", "no")]).params() == {"a": "x, y", "b": "z"}


@pytest.mark.parametrize("leftover", ["mcp-session-id", "last-event-id"])
def test_leftovers_of_the_legacy_era_change_nothing(leftover: str) -> None:
    """HTTP-027, VER-005."""
    draft = Draft()
    draft.headers[leftover] = "x"
    assert served(draft) == served(Draft())


# Optional members of `_meta`.


@pytest.mark.parametrize("token", [b'"p"', b'""', b"0", b"-7", b"9007199254740993"])
def test_a_progress_token_keeps_its_spelling(token: bytes) -> None:
    """PROG-001 (F02)."""
    draft = Draft(finish=doubled(b"_meta", b'"progressToken":' + token))
    assert served(draft).progress_token == token


@pytest.mark.parametrize("token", [b"null", b"1.5", b"true", b"[]", b"{}"])
def test_a_progress_token_of_a_wrong_type_is_refused(token: bytes) -> None:
    draft = Draft(finish=doubled(b"_meta", b'"progressToken":' + token))
    assert refused(draft.body(), draft.headers) == (200, -32602, ID)


@pytest.mark.parametrize(
    "level", ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
)
def test_every_log_level_is_known(level: str) -> None:
    """LOG-002."""
    draft = Draft()
    draft.meta[LOG_LEVEL] = level
    assert served(draft).log_level == level


@pytest.mark.parametrize("level", ["", "WARNING", "verbose", None, 4, ["info"]])
def test_an_unknown_log_level_is_refused(level: object) -> None:
    """LOG-003."""
    draft = Draft()
    draft.meta[LOG_LEVEL] = level
    assert refused(draft.body(), draft.headers) == (200, -32602, ID)


@pytest.mark.parametrize("info", [None, {"name": "a"}, {"name": "b"}, 7, "x"])
def test_who_the_client_says_it_is_changes_nothing(info: object) -> None:
    """BASE-020."""
    draft = Draft()
    draft.meta[INFO] = info
    request = served(draft)
    assert (request.owner, request.capabilities) == (ANONYMOUS, served(Draft()).capabilities)


# The codes.


def test_our_own_faults_use_codes_that_the_specification_defines() -> None:
    """BASE-010, BASE-011."""
    assert {code.value for code in ErrorCode} == {
        *(-32700, -32600, -32601, -32602, -32603),
        *(-32020, -32021, -32022),
    }
    assert HTTP_STATUS.keys() == set(ErrorCode)


def test_a_refusal_repeats_nothing_of_the_arguments() -> None:
    """LOG-005: messages go to logs and screens."""
    draft = Draft(params={"name": "train", "arguments": {"password": "hunter2"}})
    del draft.headers["mcp-name"]
    with pytest.raises(Rejection) as raised:
        judge(draft.body(), draft.headers)
    assert "hunter2" not in json.dumps([raised.value.fault.message, raised.value.fault.data])
