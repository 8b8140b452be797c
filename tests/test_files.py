"""Files that settings name: read whole, or said why not; none is waited for without a bound.

Contract section 1 (I6).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.files import UnusableFile, read_regular, within_bound


def test_a_regular_file_is_read_up_to_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"four")
    file.chmod(0o640)
    found = read_regular(file, 4)
    assert (found.content, found.mode) == (b"four", 0o640)
    (tmp_path / "link").symlink_to(file)  # as Kubernetes mounts them
    assert read_regular(tmp_path / "link", 4).content == b"four"
    with pytest.raises(UnusableFile, match="is over 3 bytes"):
        read_regular(file, 3)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("fifo", "is no regular file"),
        (".", "is no regular file"),
        ("/dev/zero", "is no regular file"),
        ("none", "cannot be read: No such file or directory"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "is no name that a file can have"),
    ],
)
def test_nothing_else_is(tmp_path: Path, name: str, reason: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnusableFile, match=reason):
        read_regular(tmp_path / name, 4)


def test_what_hangs_is_left_to_itself() -> None:
    let_go = threading.Event()
    with pytest.raises(ConfigError, match=r"^key_file: the file system does not answer within 0.01 s$"):
        within_bound("key_file", let_go.wait, 0.01)
    let_go.set()
    assert within_bound("key_file", lambda: 7) == 7
    with pytest.raises(KeyError):
        within_bound("key_file", lambda: dict[str, int]()["x"])
