"""What is fetched from an authorization server, or from a file: bounded, and never by a redirect.

Above: `keys`, `client_credentials`. Below: the shared `aiohttp.ClientSession`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp
import anyio
from anyio import CapacityLimiter, to_thread

from proxy.files import KEY_SET_MAX_BYTES, UnusableFile, read_regular

FETCH_TIMEOUT_S: Final = 8.0  # below what a client waits for keys
MAX_BYTES: Final = KEY_SET_MAX_BYTES

_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}


class SourceError(Exception):
    """It could not be had. The message says why, without what may be secret."""


async def fetch(client: aiohttp.ClientSession, url: str) -> bytes:
    """The document there. Raises SourceError."""
    return await _answer(client, "GET", url, _HEADERS, None)


async def post_form(
    client: aiohttp.ClientSession, url: str, form: Mapping[str, str], headers: Mapping[str, str]
) -> bytes:
    """The answer to a form. Raises SourceError."""
    return await _answer(client, "POST", url, {**_HEADERS, **headers}, aiohttp.FormData(form))


async def _answer(
    client: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    data: aiohttp.FormData | None,
) -> bytes:
    try:
        with anyio.fail_after(FETCH_TIMEOUT_S):
            async with client.request(
                method, url, headers=headers, data=data, allow_redirects=False
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise SourceError(f"the answer is over {MAX_BYTES} bytes")
                if response.status != 200:
                    raise SourceError(f"the answer has status {response.status}")
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise SourceError("the answer is compressed, which was not asked for")
                return bytes(body)
    except TimeoutError as exc:
        raise SourceError(f"no answer within {FETCH_TIMEOUT_S:g} s") from exc
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise SourceError(f"it could not be reached ({type(exc).__name__})") from exc


class FileSource:
    """A file that may change at any time. Where the disk hangs one thread waits for it, and nobody else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading = threading.Lock()

    async def read(self) -> bytes:
        """What is in the file now. Raises SourceError."""
        try:
            with anyio.fail_after(FETCH_TIMEOUT_S):
                return await to_thread.run_sync(
                    self._read, abandon_on_cancel=True, limiter=CapacityLimiter(1)
                )
        except TimeoutError as exc:
            raise SourceError(f"{self._path} did not answer within {FETCH_TIMEOUT_S:g} s") from exc

    def _read(self) -> bytes:
        if not self._reading.acquire(blocking=False):
            raise SourceError(f"{self._path} does not answer")
        try:
            return read_regular(self._path, MAX_BYTES).content
        except UnusableFile as exc:
            raise SourceError(f"{self._path} {exc}") from exc
        finally:
            self._reading.release()
