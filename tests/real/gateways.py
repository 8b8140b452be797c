"""nginx and Caddy as deploy/ configures them, but for the port and TLS."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.documents import ROOT
from tests.real.processes import Program, accepts, free_port
from tests.real.waiting import until

NAME: Final = "mcp.example.com"
TO: Final = "127.0.0.1:8080"  # where both files expect the proxy
START_BOUND_S: Final = 40.0
SYSTEM_PATH: Final = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"

NGINX_MAIN: Final = """
daemon off;
master_process off;
pid {home}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    {server}
}}
"""


class Gateway:
    """In front of a proxy on `to_port`; clients use `port`, with `NAME` as Host."""

    def __init__(self, kind: str, home: Path, to_port: int) -> None:
        self.port = free_port()
        self._home = home / kind
        self._home.mkdir()
        self._command = _COMMANDS[kind](self._home, self.port, to_port)
        self._program: Program | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        env = {"HOME": str(self._home), "XDG_DATA_HOME": str(self._home), "XDG_CONFIG_HOME": str(self._home)}
        self._program = Program(self._command, log=self._home / "gateway.log", env=env)
        await until(
            lambda: accepts(self.port) or self._ended(), "the gateway listens", within_s=START_BOUND_S
        )
        assert not self._ended(), self._program.tail()

    def _ended(self) -> bool:
        return self._program is not None and self._program.exit_code is not None

    async def stop(self) -> None:
        if self._program is not None:
            await self._program.stop()
            print(f"--- {self._program.log}\n{self._program.tail()}")  # pytest shows it where the test failed


def _nginx(home: Path, port: int, to_port: int) -> list[str]:
    server = (ROOT / "deploy" / "nginx.conf").read_text("utf-8").replace(TO, f"127.0.0.1:{to_port}")
    server = server.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    server = re.sub(r"^ *ssl_\w+ .*;\n", "", server, flags=re.MULTILINE)
    config = home / "nginx.conf"
    config.write_text(NGINX_MAIN.format(home=home, server=server))
    return [_program("nginx"), "-e", "stderr", "-p", str(home), "-c", str(config)]


def _caddy(home: Path, port: int, to_port: int) -> list[str]:
    site = (ROOT / "deploy" / "Caddyfile").read_text("utf-8").replace(TO, f"127.0.0.1:{to_port}")
    site = site.replace(f"{NAME} {{", f"http://{NAME}:{port} {{")
    config = home / "Caddyfile"
    config.write_text("{\n\tadmin off\n}\n" + site)
    return [_program("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)]


def _program(name: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    assert found is not None, f"{name} is missing: run `make tools`"
    return found


_COMMANDS: Final[Mapping[str, Callable[[Path, int, int], list[str]]]] = {"nginx": _nginx, "caddy": _caddy}
KINDS: Final = tuple(_COMMANDS)
