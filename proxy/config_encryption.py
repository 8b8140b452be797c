"""The section `store.encryption`: the keys that what is stored is encrypted with.

Above: `config`; `assembly` has the keys read. A key is 32 random bytes, written in base64. Contract section
8, "arguments, answers and results can be encrypted at rest with a key from the environment".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from proxy.addresses import FilePath
from proxy.errors import ConfigError
from proxy.files import UnusableFile, read_regular, within_bound
from proxy.logs import get_logger
from proxy.sections import Section

KEY_BYTES: Final = 32
KEY_FILE_MAX_BYTES: Final = 64 << 10
_OTHERS: Final = 0o077
_BETTER: Final = "a mode of 0400: whoever reads it can read the store"
_LIKE_A_KEY: Final = re.compile(r"[\w+/-]{16,}={1,2}", re.ASCII)
NEEDED: Final = (
    f"a key is {KEY_BYTES} random bytes in base64, such as `openssl rand -base64 {KEY_BYTES}` prints"
)

log = get_logger()


def _key(text: str) -> bytes:
    """Both alphabets of base64. Raises ValueError."""
    try:
        key = base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(NEEDED)
    return key


def _is_key(value: SecretStr) -> SecretStr:
    _key(value.get_secret_value())
    return value


def _one_or_several(value: Any) -> Any:
    """In a variable of the environment one key needs no brackets."""
    return (value,) if isinstance(value, str) else value


def _no_key(value: str) -> str:
    """Nor one that lacks some letters: the name of a file is repeated where there is none."""
    if _LIKE_A_KEY.fullmatch(value):
        raise ValueError("that is a key; it goes into keys, or into a file that is named here")
    return value


SecretKey: TypeAlias = Annotated[SecretStr, AfterValidator(_is_key)]


class EncryptionConfig(Section):
    """Off without this section, and never by a section that is empty. The first key encrypts, each decrypts;
    those of the file come after the others."""

    keys: Annotated[tuple[SecretKey, ...], BeforeValidator(_one_or_several)] = Field(default_factory=tuple)
    key_file: Annotated[FilePath, Field(min_length=1), AfterValidator(_no_key)] | None = None

    @model_validator(mode="after")
    def _has_a_key(self) -> EncryptionConfig:
        if not self.is_on:
            raise ValueError(
                "no key is given: keys or key_file; to do without encryption, take the section away"
            )
        return self

    @property
    def is_on(self) -> bool:
        return bool(self.keys) or self.key_file is not None

    def read_keys(self, store: Path, *, warns: bool = True) -> tuple[bytes, ...]:
        """The keys, in order, of what is encrypted in the directory `store`. Reads the file; raises
        ConfigError if there is something wrong with it."""
        given = (_key(key.get_secret_value()) for key in self.keys)
        return tuple(
            chain(
                given,
                [] if self.key_file is None else _in_file(Path(self.key_file).expanduser(), store, warns),
            )
        )


def _in_file(path: Path, store: Path, warns: bool) -> Iterator[bytes]:
    """One key a line; what begins with # is a comment. Nothing of it is ever repeated."""
    setting = "store.encryption.key_file"
    try:
        found = within_bound(setting, partial(read_regular, path, KEY_FILE_MAX_BYTES))
        lines, mode = found.content.decode("ascii").splitlines(), found.mode
    except UnusableFile as exc:
        raise ConfigError(f"{setting}: {path} {exc}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{setting}: {path} is not text; {NEEDED}") from exc
    if path.resolve().is_relative_to(store.resolve()):
        raise ConfigError(
            f"{setting}: {path} is in the store directory {store}: whoever gets the one has the other, too;"
            " keep it elsewhere"
        )
    if warns and mode & _OTHERS:
        log.warning("key_file_open_to_others", path=str(path), mode=f"{mode:04o}", better=_BETTER)
    written = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    keys = [(number, line) for number, line in written if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{setting}: {path} holds no key; {NEEDED}")
    for number, line in keys:
        try:
            yield _key(line)
        except ValueError as exc:
            raise ConfigError(f"{setting}: {path}, line {number}: {exc}") from exc
