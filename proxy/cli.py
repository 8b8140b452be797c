"""The command `mcp-taskproxy`: reads what the operator said, then runs the proxy or checks the settings.

Above: the shell. Below: `sources` for the settings, `logs`, and `app`, which is imported only to run.
Every fault of the operator's is one line on stderr and exit code 2; ours are one line and exit code 1,
with the traceback at `--log-level debug`. Contract section 11.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import click
import yaml

from proxy import __version__, logs
from proxy.complaints import shown
from proxy.config import Config, UpstreamConfig
from proxy.ending import leave_hanging_threads
from proxy.errors import ConfigError
from proxy.files import KEY_SET_MAX_BYTES, UnusableFile, read_regular, within_bound
from proxy.pid1 import run_below
from proxy.secrecy import masked, masked_program, masked_url
from proxy.sources import FILE_VARIABLE, FLAGS, load

NAME: Final = "mcp-taskproxy"
CHECK: Final = "check-config"
YOUNG_OBJECTS: Final = (
    10_000  # some megabytes at most; Python's 700 are less than a few requests at once have
)

EXIT_OURS: Final = 1
EXIT_OPERATOR: Final = 2
EXIT_INTERRUPTED: Final = 130  # what shells expect after SIGINT

_TRUSTED: Final = {
    "auth.gateway.trusted": "whoever reaches this address is whoever they say they are",
    "trusted_proxies": "whoever reaches this address says where they come from",
}

_FORMS: Final = """
\b
mcp-taskproxy -- CMD ARGS…                            stdio on both sides
mcp-taskproxy --listen 127.0.0.1:8080 -- CMD ARGS…    HTTP, upstream on stdio
mcp-taskproxy --listen 127.0.0.1:8080 --upstream URL  HTTP, upstream on HTTP
mcp-taskproxy --config FILE                           all of it in a file
mcp-taskproxy check-config …                          prints what is in force
"""


def main() -> None:
    """The entry point: runs the command line and exits."""
    carry_out = partial(run, sys.argv[1:], os.environ)
    sys.exit(run_below(carry_out) if os.getpid() == 1 else carry_out())


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Carry out one command line; returns its exit code."""
    level = ""
    try:
        said = _parsed(arguments)
        if isinstance(said, int):
            return said
        level = said["log_level"]
        config = _configured(said, environ)
        level = config.log.level
        if said["check"]:
            check_files(config)
            if config.store.directory is not None:  # a start reads them anyway
                config.store.encryption.read_keys(config.store.directory, warns=False)
            click.echo(effective(config), nl=False)
        else:
            check_files(config)
            check_program(config.upstream, environ)
            _serve(config)
    except click.ClickException as exc:
        return _complain(exc.format_message(), EXIT_OPERATOR)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - the last place that can word it
        return _complain_of(exc, debug=level == "debug")
    return 0


def _parsed(arguments: Sequence[str]) -> dict[str, Any] | int:
    """What was said, by name; or an exit code, where --help or --version has answered."""
    own, command = _split(arguments)
    check = CHECK in own
    said = _options.main([word for word in own if word != CHECK], NAME, standalone_mode=False)
    return {**said, "check": check, "command": command} if isinstance(said, dict) else int(said)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Our own arguments, and the command behind the first `--`, whose flags are none of our business."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


@click.command(NAME, epilog=_FORMS, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, metavar="")
@click.option("--listen", metavar="HOST:PORT", help="Where clients reach us; or stdio, the default.")
@click.option("--upstream", metavar="URL", help="The MCP server to stand in front of.")
@click.option("--config", metavar="FILE", help=f"A YAML file; ${FILE_VARIABLE} names it too.")
@click.option("--threshold", metavar="2s", help="How long a call may take before it becomes a task.")
@click.option("--store", metavar="URL", help="Where tasks live: memory: or disk:DIR.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
@click.version_option(__version__, message="%(prog)s %(version)s")
def _options(words: Sequence[str], **said: Any) -> dict[str, Any]:
    """Puts durable tasks in front of an MCP server that has none."""
    if words:
        raise click.UsageError(f"unexpected {shown(words[0])}: the server's command goes after --")
    return said


def _configured(said: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    file = said["config"] or environ.get(FILE_VARIABLE)
    return load(
        Path(file) if file else None,
        environ,
        {flag: said[flag.removeprefix("--").replace("-", "_")] for flag in FLAGS},
    )


def effective(config: Config) -> str:
    """The settings in force as YAML that can be loaded again, but for the values that may be secret."""
    settings = config.model_dump(mode="json")
    if not config.store.encryption.is_on:
        del settings["store"]["encryption"]
    for name in ("jwt", "gateway"):
        if not getattr(config.auth, name).is_on:
            del settings["auth"][name]
    return yaml.safe_dump(masked(settings), sort_keys=False, allow_unicode=True)


def check_files(config: Config) -> None:
    """Raise ConfigError if the settings name a file or directory that cannot be used. The issuer's keys may
    come later, since clients are told meanwhile that there are none yet."""
    cwd, jwks = config.upstream.cwd, config.auth.jwt.jwks_file
    if cwd is not None and not within_bound("upstream.cwd", partial(os.path.isdir, cwd)):
        raise ConfigError(f"upstream.cwd: no directory {masked_url(cwd)!r}")
    if jwks is None:
        return
    path = Path(jwks).expanduser()
    try:
        within_bound("auth.jwt.jwks_file", partial(_read_if_there, path))
    except UnusableFile as exc:
        raise ConfigError(f"auth.jwt.jwks_file: {path} {exc}") from exc


def _read_if_there(path: Path) -> None:
    if path.exists():
        read_regular(path, KEY_SET_MAX_BYTES)


def check_program(upstream: UpstreamConfig, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if the upstream's program is not there; where settings are checked it need not be."""
    if upstream.command is None:
        return
    program = upstream.command[0]
    if os.sep in program:  # a path is looked up where the program will run
        found = shutil.which(Path(upstream.cwd or ".", program).absolute())
    else:
        found = shutil.which(program, path=upstream.env.get("PATH", environ.get("PATH")))
    if found is None:
        raise ConfigError(f"upstream.command: no program {masked_program(program)!r} that can be run")


def _serve(config: Config) -> None:
    writer = logs.configure(config.log.level, config.log.format)
    try:
        from proxy.app import deadline_of, serve

        _spare_the_collector()
        deadline = deadline_of(config)
        try:
            anyio.run(partial(serve, config, deadline, ready=partial(_announce, config)))
        finally:
            deadline.cancel()
    finally:
        writer.close()
    leave_hanging_threads(0)


def _spare_the_collector() -> None:
    """What was made until now stays for good, so that garbage collection need not walk over it; and what
    serves a request frees itself, so that it need not look at every few of them."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _announce(config: Config, url: str) -> None:
    """The start-up line. `url` is where we really listen."""
    log = logs.get_logger()
    log.info("proxy_started", **config.describe(url))
    if config.is_open:
        log.warning(
            "open_without_authentication",
            listen=config.listen,
            meaning="everybody who reaches this address can call the server's tools",
        )
    for setting in config.trust_everybody:
        log.warning("everybody_is_trusted", setting=setting, meaning=_TRUSTED[setting])


def _complain_of(exc: BaseException, debug: bool) -> int:
    while isinstance(exc, BaseExceptionGroup):  # what a task group made of it
        exc = exc.exceptions[0]
    if isinstance(exc, ConfigError):
        return _complain(exc.message, EXIT_OPERATOR)
    if debug:
        traceback.print_exception(exc)
    return _complain(f"{type(exc).__name__}: {exc}", EXIT_OURS)


def _complain(message: str, exit_code: int) -> int:
    click.echo(f"{NAME}: error: {' '.join(message.split())}", err=True)
    return exit_code
