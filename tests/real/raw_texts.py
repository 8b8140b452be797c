"""Generated JSON for the fidelity tests: parts of messages, as odd as JSON that nobody need understand."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from proxy.protocol.envelope import dumps
from tests.protocol import json_texts
from tests.real.upstreams import echo
from tests.real.upstreams.raw_json import Members, joined, meaning

DEEPEST: Final = 480  # with what is around it, below the default bound of 512

generated = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes over real processes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

ODD: Final = b'{"n":[1E400, -0,1.10,\r\n9007199254740993 ] ,"n":"\\ud83d\xe2\x80\xa8", "a":null}'
OF_A_CALL: Final = ("_meta", "task", "inputResponses", "requestState")
"""Members of any call's params that the proxy may change."""


def _nested(depth: int) -> bytes:
    return b'{"a": [' * (depth // 2) + b'"\\udc00"' + b"]}" * (depth // 2)


anything = st.one_of(json_texts.texts(), json_texts.texts(), st.integers(65, DEEPEST).map(_nested))
objects = json_texts.objects(anything).map(lambda made: made[0])
arrays = json_texts.arrays(anything).map(lambda made: made[0])
strings = json_texts.strings


def others(*read: str) -> st.SearchStrategy[Members]:
    """Members, none of these that the proxy reads; some keys stand twice."""
    keys = json_texts.keys.filter(lambda key: meaning(key) not in read)
    return st.lists(st.tuples(keys, anything), max_size=4)


vendor = others()
"""Keys of `_meta` that are nobody's."""

results = st.builds(
    lambda more, meta: joined([*more, (b'"_meta"', joined(meta))]), others("_meta", "resultType"), vendor
)

errors = st.builds(
    lambda more, code, message, data: joined(
        [*more, (b'"message"', message), (b'"data"', data), (b'"code"', code)]
    ),
    others("code", "message", "data"),
    st.sampled_from([b"-32603", b"7", b"-0", b"-32000"]),
    strings,
    anything,
)
"""With a code that every client may see."""

Ending = tuple[str, bytes]
"""How the echo server is told to end a call."""

endings = st.tuples(st.just(echo.RESULT), results) | st.tuples(st.just(echo.ERROR), errors)


def directed(*more: tuple[str, bytes]) -> Members:
    """Members of `_meta` that tell the echo server what to say."""
    return [(dumps(key), raw) for key, raw in more]
