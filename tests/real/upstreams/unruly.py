"""A legacy stdio server that misbehaves: at its start as HOME/mode says, in a call as the tool's name says.

    unruly.py HOME      HOME/journal gets a line for each start and each message that is read

Standard library only, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(sys.argv[1])
VERSION: Final = "2025-06-18"
SLOW_START_S: Final = 3.0
PING_EVERY_S: Final = 0.1
PINGS: Final = 40
CHATTER: Final = [
    *(
        b"Server listening...\n",
        "\U0001f680 ready\n".encode(),
        b"\n",
        b"   \n",
        b"\r\n",
        b"\x1b[32mINFO\x1b[0m\n",
    ),
    *(b"123\n", b'"str"\n', b"null\n", b"[]\n", b"{}\n", b'{"jsonrpc":"2.0"}\n', b"[INFO] no JSON\n"),
    *(b"Content-Length: 50\r\n\r\n", b"\xff\xfe\x00\n", b'{"jsonrpc":"2.0","id":77,"result":\n'),
    *(b'{"jsonrpc":"2.0","id":{"a":1},"result":{}}\n', b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}\n'),
    *(
        b'{"jsonrpc":"2.0","method":7}\n',
        b'{"jsonrpc":"1.0","id":777777,"result":{}}\n',
        b"[" * 10_000 + b"\n",
    ),
]


def note(event: str, **more: Any) -> None:
    with (HOME / "journal").open("a") as journal:
        journal.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")


def write(raw: bytes) -> None:
    while raw:
        raw = raw[os.write(1, raw) :]


def say(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n")


def answer(rid: Any, text: str = "done") -> None:
    say(id=rid, result=result(text))


def result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def ask(rid: Any) -> None:
    params = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
    say(id=rid, method="elicitation/create", params=params)
    note("asked", question=rid)


def messages() -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        brief = message if len(line) < 10_000 else {"size": len(line), "method": message.get("method")}
        note("got", message=brief)
        yield message


INCOMING: Final = messages()

# ------------------------------------------------------------------------------ in a call


def end_with_code(rid: Any, _: dict[str, Any]) -> None:
    sys.stderr.write("\x1b[31mFatal:\x1b[0m no database\n")
    sys.exit(5)


def end_by_signal(rid: Any, _: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def close_stdout(rid: Any, _: dict[str, Any]) -> None:
    os.close(1)
    signal.pause()


def hang(rid: Any, _: dict[str, Any]) -> None:
    """Not even a cancel is obeyed, though it is read."""


def stop_reading(rid: Any, _: dict[str, Any]) -> None:
    answer(rid)
    signal.pause()


def other_id(rid: Any, _: dict[str, Any]) -> None:
    answer(rid + 1_000_000, "wrong")
    answer(f"x{rid}", "wrong")
    answer(-rid, "wrong")


def other_id_first(rid: Any, _: dict[str, Any]) -> None:
    other_id(rid, {})
    answer(rid)


def text_id(rid: Any, _: dict[str, Any]) -> None:
    answer(str(rid))


def twice(rid: Any, _: dict[str, Any]) -> None:
    answer(rid, "first")
    answer(rid, "second")
    say(id=rid, error={"code": -32603, "message": "third"})


def batch(rid: Any, _: dict[str, Any]) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/vendor", "params": {"n": 1}}
    answered = {"jsonrpc": "2.0", "id": rid, "result": result("from an array")}
    write(json.dumps([told, answered]).encode() + b"\n")


def chatter(rid: Any, _: dict[str, Any]) -> None:
    for junk in CHATTER:
        write(junk)
    write(b"again and again\n" * 2_000)
    answer(rid)
    write(b"".join(CHATTER))


def text_before(rid: Any, _: dict[str, Any]) -> None:
    write(b"Loading... ")
    answer(rid)


def broken_answer(rid: Any, _: dict[str, Any]) -> None:
    say(id=rid, result={}, error={"code": 1, "message": "both"})


def flood_stderr(rid: Any, arguments: dict[str, Any]) -> None:
    line = {"lines": b"a log line " * 7 + b"\n", "one line": b"no line end ", "not UTF-8": b"\xff\xfe\xc3 "}
    os.set_blocking(2, True)
    chunk = line[arguments["how"]] * 1_000
    for _ in range(1 + (1 << 20) // len(chunk)):
        os.write(2, chunk)
    answer(rid)


def big(rid: Any, arguments: dict[str, Any]) -> None:
    """A result of so many bytes; the id may stand where nobody looks for it."""
    text = b'"result":{"content":[{"type":"text","text":"' + b"x" * arguments["size"] + b'"}]}'
    own_id = b'"id":%d' % rid
    match arguments.get("id", "first"):
        case "first":
            members = [b'"jsonrpc":"2.0"', own_id, text]
        case "last":
            members = [text, own_id, b'"jsonrpc":"2.0"']
        case _:
            members = [text, own_id, b'"x":"' + b"y" * 1_000 + b'"', b'"jsonrpc":"2.0"']
    write(b"{" + b",".join(members) + b"}\n")


def split(rid: Any, _: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": rid, "result": result("Zoë \U0001f680 \u2028")}
    for byte in json.dumps(message, ensure_ascii=False).encode() + b"\n":
        write(bytes([byte]))


def answer_after_cancel(rid: Any, _: dict[str, Any]) -> None:
    for message in INCOMING:
        if message.get("method") == "notifications/cancelled":
            answer(rid, "too late")
            return


def ask_after_answer(rid: Any, _: dict[str, Any]) -> None:
    answer(rid)
    ask("late")


def ask_when_idle(rid: Any, _: dict[str, Any]) -> None:
    answer(rid)
    time.sleep(0.3)
    ask("idle")


def ask_and_end(rid: Any, _: dict[str, Any]) -> None:
    ask("orphan")
    answer(rid)


def ping_a_lot(rid: Any, _: dict[str, Any]) -> None:
    """Ids of both types; whoever answers all of them gets the answer."""
    ids: list[Any] = [*range(PINGS), *map(str, range(PINGS))]
    for own in ids:
        say(id=own, method="ping")
    while ids:
        message = next(INCOMING)
        if message.get("result") == {}:
            ids.remove(message["id"])
    answer(rid)


def deep(rid: Any, _: dict[str, Any]) -> None:
    nested = b"[" * 2_000 + b"]" * 2_000
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"x":%s}}\n' % (rid, nested))


def not_utf8(rid: Any, _: dict[str, Any]) -> None:
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"x":"\xff"}}\n' % rid)


def not_json(rid: Any, _: dict[str, Any]) -> None:
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[NaN]}}\n' % rid)


def odd_progress(rid: Any, _: dict[str, Any]) -> None:
    """Of nobody's token, falling, of a wrong type, after the answer."""
    for token, progress in ((999, 1), (rid, 2), (rid, 1), (rid, "three"), (None, 4), ([rid], 5)):
        say(method="notifications/progress", params={"progressToken": token, "progress": progress})
    say(method="notifications/progress", params=[1])
    answer(rid)
    say(method="notifications/progress", params={"progressToken": rid, "progress": 9})


def wait(rid: Any, arguments: dict[str, Any]) -> None:
    time.sleep(arguments["seconds"])
    answer(rid)


TOOLS: Final[dict[str, Callable[[Any, dict[str, Any]], None]]] = {
    "ok": lambda rid, _: answer(rid),
    **{
        tool.__name__: tool
        for tool in (
            *(end_with_code, end_by_signal, close_stdout, hang, stop_reading, wait),
            *(other_id, other_id_first, text_id, twice, batch, chatter, text_before, broken_answer),
            *(flood_stderr, big, split, deep, not_utf8, not_json, odd_progress),
            *(answer_after_cancel, ask_after_answer, ask_when_idle, ask_and_end, ping_a_lot),
        )
    },
}

# ------------------------------------------------------------------------------ at the start


def begin(mode: str) -> None:
    """What happens before anything is read."""
    match mode:
        case "crash":
            sys.stderr.write("cannot read the licence file\n")
            sys.exit(3)
        case "never read":
            signal.pause()
        case "close stdout":
            os.close(1)
            signal.pause()
        case "slow":
            time.sleep(SLOW_START_S)
        case "chatter":
            write(b"".join(CHATTER))


def serve(mode: str) -> None:
    for message in INCOMING:
        match message.get("method"):
            case "server/discover" if mode == "die on the probe":
                sys.exit(7)
            case "server/discover" if mode == "hang on the probe":
                pass
            case "initialize" if mode == "hang at initialize":
                pass
            case "notifications/initialized" if mode == "die after the handshake":
                sys.exit(4)
            case "notifications/initialized" if mode == "ping all the time":
                ping_for_ever()
            case str():
                take(message)


def take(message: dict[str, Any]) -> None:
    """As a server should, but for the tools."""
    rid, method = message.get("id"), message["method"]
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
            info = {"name": "unruly", "version": "1"}
            say(id=rid, result={"protocolVersion": VERSION, "capabilities": capabilities, "serverInfo": info})
        case "tools/list":
            say(id=rid, result={"tools": [{"name": name, "inputSchema": {}} for name in TOOLS]})
        case "tools/call":
            TOOLS[message["params"]["name"]](rid, message["params"].get("arguments", {}))
        case _ if rid is not None:
            say(id=rid, error={"code": -32601, "message": f"unknown method {method}"})


def ping_for_ever() -> None:
    """Each ping is answered before the next one is sent."""
    number = 0
    say(id=number, method="ping")
    for message in INCOMING:
        if "method" in message:
            take(message)
        elif message["id"] == number:
            time.sleep(PING_EVERY_S)
            number += 1
            say(id=number, method="ping")


def main() -> None:
    mode = (HOME / "mode").read_text()
    note("start", mode=mode)
    begin(mode)
    serve(mode)


if __name__ == "__main__":
    main()
