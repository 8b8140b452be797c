"""Sends mutated requests to a running proxy, and judges what comes back and what is left of the proxy.

Nothing that is sent may bring a 500, a traceback, an internal error, a crash, or growth. Each entrance is
asked something valid now and then, and must answer that.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proxy.protocol import names
from tests.fuzz.mutants import META, Mutants

ANSWER_S: Final = 0.5  # who gets no answer by then has not sent a whole request, or waits for a long call
VALID_EVERY: Final = 400
TRACEBACK_LINES: Final = 60
VALID_S: Final = 20.0
BY_DESIGN: Final = frozenset({502, 503, 504})
"""Beside 500, of which none is: the upstream failed, or there is too much of something."""

_TOLD: Final = re.compile(rb"Traceback|File \"|\.py\", line|internal error of the proxy|/proxy/")
_LOGGED: Final = re.compile(r"Traceback|request_failed|work_failed|session_failed|level=error| error  ")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class Wrong(AssertionError):
    """What must not be; says which request it was."""


@dataclass
class Tally:
    """What came back: statuses (0: nothing), the codes of errors, and how their messages begin."""

    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    def note(self, answer: bytes) -> None:
        self.errors.update(int(code) for code in re.findall(rb'"code": ?(-\d+)', answer))
        said = re.findall(rb'"message": ?"([^"]*)', answer)
        self.words.update(" ".join(words.decode("utf-8", "replace").split()[:6]) for words in said)

    def add(self, other: Tally) -> None:
        self.statuses += other.statuses
        self.errors += other.errors
        self.words += other.words
        self.sent += other.sent


class HttpEntrance:
    """Of the proxy at this port. May be used by several threads, each with an entrance of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.tally = Tally()

    def send(self, raw: bytes) -> bytes:
        """What comes back, judged. Raises Wrong."""
        answer = self._exchange(raw, ANSWER_S)
        self.tally.sent += 1
        found = _STATUS.match(answer)
        if answer and found is None:
            raise Wrong(f"no HTTP: {answer[:300]!r} to {raw[:2_000]!r}")
        status = int(found[1]) if found is not None else 0
        self.tally.statuses[status] += 1
        self.tally.note(answer)
        is_ours = b"jsonrpc" in answer or b"ready" in answer
        if status >= 500 and not (status in BY_DESIGN and is_ours):
            raise Wrong(f"{answer[:600]!r} to {raw[:2_000]!r}")
        if said := _TOLD.search(answer):
            raise Wrong(f"{said[0]!r} in {answer[:2_000]!r} to {raw[:2_000]!r}")
        return answer

    def ask_valid(self) -> None:
        """A request that must be answered, whatever came before."""
        body = json.dumps(
            {"jsonrpc": "2.0", "id": "valid", "method": names.TOOLS_LIST, "params": {"_meta": META}}
        )
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer valid\r\n"
            f"{names.H_PROTOCOL_VERSION}: {names.LATEST_MODERN}\r\n{names.H_METHOD}: {names.TOOLS_LIST}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        answer = self._exchange((head + body).encode(), VALID_S)
        if not answer.startswith(b"HTTP/1.1 200 ") or b'"tools"' not in answer:
            raise Wrong(f"a valid request was answered {answer[:600]!r}")

    def open_session(self) -> str:
        """The id of a legacy session."""
        params = {
            "protocolVersion": names.LATEST_LEGACY,
            "capabilities": {"elicitation": {}},
            "clientInfo": {},
        }
        params["clientInfo"] = {"name": "fuzz", "version": "1"}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": names.INITIALIZE, "params": params})
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        answer = self._exchange((head + body).encode(), VALID_S)
        found = re.search(rb"(?i)mcp-session-id: ([!-~]+)", answer)
        assert found is not None, answer
        return found[1].decode()

    def _exchange(self, raw: bytes, within_s: float) -> bytes:
        """One connection; the first answer on it, as far as it comes in time."""
        answer, until = b"", time.monotonic() + within_s
        with socket.create_connection(("127.0.0.1", self.port), timeout=VALID_S) as sock:
            try:
                sock.sendall(raw)
                while not _is_whole(answer) and (left := until - time.monotonic()) > 0:
                    sock.settimeout(left)
                    chunk = sock.recv(65_536)
                    if not chunk:
                        break
                    answer += chunk
            except (TimeoutError, ConnectionError, BrokenPipeError):
                pass
        return answer


def _is_whole(answer: bytes) -> bool:
    head, split, body = answer.partition(b"\r\n\r\n")
    if not split:
        return False
    if head.startswith(b"HTTP/1.1 100 "):
        return _is_whole(body)
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    if length is not None:
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n") if b"chunked" in head.lower() else True


class StdioEntrance:
    """A proxy at whose stdin and stdout we are. `close` it."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.tally = Tally()
        self.log = log
        self._asked = 0
        self._lines: deque[bytes] = deque()
        self._came = threading.Condition()
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **env},
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self._lines.append(line)
                self._came.notify()
        with self._came:
            self._lines.append(b"")
            self._came.notify()

    def send(self, line: bytes) -> None:
        """One line, or several if it has line ends in it."""
        assert self.process.stdin is not None
        self.tally.sent += 1
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask_valid(self) -> None:
        """A request that must be answered; what came before its answer is judged. Raises Wrong."""
        self._asked += 1
        rid = f"valid-{self._asked}"
        params: dict[str, Any] = {"_meta": META}
        self.send(
            json.dumps({"jsonrpc": "2.0", "id": rid, "method": names.TOOLS_LIST, "params": params}).encode()
        )
        for line in self._said():
            message = json.loads(line)
            if isinstance(message, dict) and message.get("id") == rid:
                if "result" not in message:
                    raise Wrong(f"a valid request was answered {line[:600]!r}")
                return

    def _said(self) -> Iterator[bytes]:
        until = time.monotonic() + VALID_S
        while True:
            with self._came:
                if not self._came.wait_for(lambda: self._lines, timeout=until - time.monotonic()):
                    raise Wrong("a valid request was not answered")
                line = self._lines.popleft()
            if not line:
                raise Wrong("the proxy has ended")
            if _TOLD.search(line):
                raise Wrong(f"told: {line[:2_000]!r}")
            self.tally.note(line)
            yield line

    def end(self) -> int:
        """The end of stdin; the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(VALID_S)

    def close(self) -> None:
        """Whatever its state is."""
        self.process.kill()
        self.process.wait()
        self._reading.join(VALID_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def complaints_in(log: Path) -> list[str]:
    """Lines that tell of a fault of ours."""
    lines = log.read_text(errors="replace").splitlines()
    return [
        "\n".join(lines[at : at + TRACEBACK_LINES])
        for at, line in enumerate(lines)
        if _LOGGED.search(line) and "upstream_stderr" not in line
    ]


def fuzz_http(port: int, requests: int, seed: int, threads: int = 8) -> Tally:
    """Send so many mutated requests, and valid ones between them. Raises Wrong."""
    whole, faults = Tally(), list[BaseException]()
    session = HttpEntrance(port).open_session()

    def work(nth: int) -> None:

        entrance, mutants = HttpEntrance(port), Mutants(random.Random(f"{seed}-{nth}"), session)
        try:
            for count in range(nth, requests, threads):
                entrance.send(mutants.http())
                if count % VALID_EVERY < threads:
                    entrance.ask_valid()
        except BaseException as exc:  # noqa: BLE001 - told by the thread that waits
            faults.append(exc)
        whole.add(entrance.tally)

    working = [threading.Thread(target=work, args=(nth,)) for nth in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    if faults:
        raise faults[0]
    HttpEntrance(port).ask_valid()
    return whole


def fuzz_stdio(entrance: StdioEntrance, lines: int, seed: int) -> Tally:
    """As `fuzz_http`."""

    mutants = Mutants(random.Random(seed))
    for count in range(lines):
        entrance.send(mutants.line())
        if count % 25 == 24:
            entrance.ask_valid()
    entrance.ask_valid()
    return entrance.tally
