"""The keys of the store: where they come from, and that no complaint repeats one. Contract section 8."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from structlog.testing import capture_logs

from proxy.cli import effective
from proxy.config import Config
from proxy.config_encryption import KEY_BYTES, NEEDED
from proxy.errors import ConfigError
from proxy.secrecy import MASK
from proxy.sources import load
from proxy.stores import encryption

FIRST, SECOND, THIRD = (bytes([number]) * KEY_BYTES for number in (1, 2, 0xFB))
STORE: Final = Path("/nowhere/store")
VARIABLE: Final = "MCP_TASKPROXY_STORE__ENCRYPTION__KEYS"


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def config(keys: Any = (), key_file: Path | None = None) -> Config:
    section = {"keys": keys, "key_file": None if key_file is None else str(key_file)}
    store = {"encryption": section} if keys or key_file else {}
    return Config.model_validate({"upstream": {"command": ["x"]}, "store": store})


def from_environment(value: str) -> tuple[bytes, ...]:
    return load(None, {VARIABLE: value}, {"command": ["x"]}).store.encryption.read_keys(STORE)


def test_there_are_none_by_default() -> None:
    assert config().store.encryption.read_keys(STORE) == ()
    assert not config().store.encryption.is_on
    assert "encrypted" not in config().describe()["store"]
    assert KEY_BYTES == encryption.KEY_BYTES


def test_the_environment_gives_one_key_or_several_in_their_order() -> None:
    assert from_environment(text(FIRST)) == (FIRST,)
    assert from_environment(f"[{text(SECOND)}, {text(FIRST)}]") == (SECOND, FIRST)


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_does_not_turn_encryption_off_unnoticed(value: str) -> None:
    """As a secret that was not found would leave it."""
    with pytest.raises(
        ConfigError, match=f"{VARIABLE}: it is empty; give it a value, or take the variable away"
    ):
        from_environment(value)


def test_both_alphabets_of_base64_are_read() -> None:
    assert from_environment(text(THIRD)) == from_environment(text(THIRD).translate(str.maketrans("+/", "-_")))


def test_those_of_the_file_come_behind(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of May\n{text(SECOND)}\n\n  {text(THIRD)}  \n")
    section = config([text(FIRST)], file).store.encryption
    assert section.is_on
    assert section.read_keys(STORE) == (FIRST, SECOND, THIRD)
    assert "encrypted" in config(key_file=file).describe()["store"]


@pytest.mark.parametrize("word", ["s3cret", "s3cret" * 8, text(FIRST)[:-4], text(FIRST + b"x"), "sécret"])
def test_what_is_no_key_is_refused_and_not_repeated(word: str, tmp_path: Path) -> None:
    for value in (word, f"[{text(FIRST)}, '{word}']"):
        with pytest.raises(ConfigError) as caught:
            from_environment(value)
        assert caught.value.message.startswith(f"{VARIABLE}: store.encryption.keys[")
        assert caught.value.message.endswith(f"found str; {NEEDED}")
    file = tmp_path / "keys"
    file.write_text(f"{text(FIRST)}\n{word}")
    with pytest.raises(ConfigError) as caught:
        config(key_file=file).store.encryption.read_keys(STORE)
    assert word not in caught.value.message
    assert NEEDED in caught.value.message


def test_what_is_not_even_yaml_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment("*s3cret")
    assert caught.value.message == f"{VARIABLE}: line 1, column 1: found undefined alias"


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    """To start without encryption, where it was asked for, would be worse."""
    file = tmp_path / "keys"
    with pytest.raises(ConfigError, match=r"store.encryption.key_file: .*keys cannot be read: No such file"):
        config(key_file=file).store.encryption.read_keys(STORE)
    file.write_text("# none yet\n\n")
    with pytest.raises(ConfigError, match="keys holds no key; a key is 32 random bytes"):
        config(key_file=file).store.encryption.read_keys(STORE)


@pytest.mark.parametrize("place", ["store/keys", "store/more/keys", "link/keys", "to-it"])
def test_a_file_in_the_store_directory_protects_from_nobody(place: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "more").mkdir(parents=True)
    for name in ("keys", "more/keys"):
        (store / name).write_text(text(FIRST))
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "to-it").symlink_to(store / "keys")
    with pytest.raises(
        ConfigError, match=f"{place} is in the store directory .*store: .*; keep it elsewhere"
    ):
        config(key_file=tmp_path / place).store.encryption.read_keys(store)


@pytest.mark.parametrize("mode", [0o440, 0o604, 0o400, 0o600])
def test_a_file_that_others_can_read_is_warned_of(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text(FIRST))
    file.chmod(mode)
    with capture_logs() as logs:
        assert config(key_file=file).store.encryption.read_keys(tmp_path / "store") == (FIRST,)
    told = [(log["event"], log["log_level"], log["path"], log["mode"]) for log in logs]
    assert told == (
        [("key_file_open_to_others", "warning", str(file), f"{mode:04o}")] if mode & 0o077 else []
    )


def test_nothing_that_is_shown_has_a_key_in_it(tmp_path: Path) -> None:
    made = config([text(FIRST), text(SECOND)])
    assert yaml.safe_load(effective(made))["store"]["encryption"]["keys"] == [MASK, MASK]
    for shown in (effective(made), repr(made), str(made.describe())):
        assert text(FIRST) not in shown
