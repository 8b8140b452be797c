"""The store directory: private, of one process, durable, and refused in one clear line."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.errors import ConfigError
from proxy.stores.directory import LOCK_NAME, SECRET_BYTES, SECRET_NAME, DirectoryInUse, HeldDirectory

NEW = b"n" * SECRET_BYTES


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_directory_is_made_private_with_its_parents(tmp_path: Path) -> None:
    HeldDirectory(path := tmp_path / "state" / "taskproxy").release()
    assert (mode(path.parent), mode(path)) == (0o700, 0o700)
    assert mode(path / LOCK_NAME) == 0o600


@pytest.mark.parametrize("used_before", [False, True])
def test_an_open_directory_that_is_empty_or_ours_is_closed_to_others(
    tmp_path: Path, used_before: bool
) -> None:
    (path := tmp_path / "store").mkdir()
    if used_before:
        HeldDirectory(path).release()
    path.chmod(0o755)
    with capture_logs() as logs:
        HeldDirectory(path).release()
    assert mode(path) == 0o700
    assert [(log["event"], log["mode"]) for log in logs] == [("store_directory_tightened", "0755")]


def test_an_open_directory_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (path := tmp_path / "project").mkdir()
    (path / "pyproject.toml").touch()
    path.chmod(0o755)
    with pytest.raises(
        ConfigError, match=r"project is open to other users \(mode 0755\) and holds other files"
    ):
        HeldDirectory(path)
    assert mode(path) == 0o755
    assert [entry.name for entry in path.iterdir()] == ["pyproject.toml"]


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        HeldDirectory(tmp_path)


def test_a_path_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    for path in (file, file / "below", Path("/proc/taskproxy")):
        with pytest.raises(ConfigError) as refused:
            HeldDirectory(path)
        assert str(path) in refused.value.message
        assert "\n" not in refused.value.message


def test_a_directory_that_cannot_be_written_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: object, flags: int, mode: int = 0o777) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(ConfigError, match="cannot be used: Permission denied"):
        HeldDirectory(tmp_path)


def test_two_stores_in_one_process_do_not_share_a_directory(tmp_path: Path) -> None:
    held = HeldDirectory(tmp_path)
    with pytest.raises(DirectoryInUse, match=rf"is in use by another mcp-taskproxy \(pid {os.getpid()}\)"):
        HeldDirectory(tmp_path)
    held.release()
    HeldDirectory(tmp_path).release()


def test_another_process_keeps_us_out_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.stores.child", "hold", str(tmp_path), "process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"holding\n"
        with pytest.raises(DirectoryInUse, match=rf"another mcp-taskproxy \(pid {child.pid}\)"):
            HeldDirectory(tmp_path)
        child.send_signal(signal.SIGKILL)
    HeldDirectory(tmp_path).release()


def test_the_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    held = HeldDirectory(tmp_path)
    secret = held.secret(NEW)
    assert (tmp_path / SECRET_NAME).read_bytes() == secret
    assert mode(tmp_path / SECRET_NAME) == 0o600
    held.release()
    again = HeldDirectory(tmp_path)
    assert again.secret(bytes(32)) == again.kept_secret() == secret
    again.release()


def test_a_secret_that_a_crash_left_unfinished_is_made_anew(tmp_path: Path) -> None:
    held = HeldDirectory(tmp_path)
    (tmp_path / "secret.new").write_bytes(b"half")
    assert held.secret(NEW) == NEW
    held.release()


def test_a_damaged_secret_is_an_error_that_names_it(tmp_path: Path) -> None:
    held = HeldDirectory(tmp_path)
    (tmp_path / SECRET_NAME).write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"secret is damaged: it holds 4 bytes instead of 32"):
        held.secret(NEW)
    held.release()
