# SPDX-License-Identifier: Apache-2.0
"""What can be no directory of checkpoints, and what may become one by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.stores.directory import DirectoryStore

from .refusing import refuse


@pytest.mark.parametrize(
    ("below", "wanted"),
    [
        ("file", "file is no directory; name one"),
        ("file/below/it", "file is no directory; name one"),
        ("dangling", "dangling is no directory"),
        ("loop", "loop is no directory"),
        ("n" * 300, "none can be made in .*name another directory"),
        ("/proc/x", "none can be made in /proc .*name another directory"),
    ],
)
def test_where_no_directory_can_be(tmp_path: Path, below: str, wanted: str) -> None:
    """No patience mends it, so that nobody waits: what is in the way is named."""
    (tmp_path / "file").write_bytes(b"somebody's")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    store = DirectoryStore(tmp_path / below / "run")
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"/run can be no checkpoint directory: .*{wanted}"):
            _ = store.is_conditional
    assert (tmp_path / "file").read_bytes() == b"somebody's"


@pytest.mark.parametrize(
    ("call", "number", "wanted"),
    [
        ("mkdir", errno.EACCES, "let the user with id [0-9]+ write there"),
        ("open", errno.EACCES, "let the user with id [0-9]+ write there"),
        ("open", errno.EROFS, "Read-only file system"),
    ],
)
def test_a_directory_that_is_closed_to_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, wanted: str
) -> None:
    """Whose it is and what is to be done is said, and once it is done the same store works."""
    store = DirectoryStore(tmp_path / "run")
    with monkeypatch.context() as patch:
        refuse(patch, call, number)
        with pytest.raises(ConfigError, match=f"{tmp_path}.* cannot be written to .*{wanted}"):
            _ = store.is_conditional
    assert store.is_conditional


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_what_may_pass_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A full disk or a file server that was away is no mistake in the configuration."""
    store = DirectoryStore(tmp_path / "run")
    with monkeypatch.context() as patch:
        refuse(patch, "fsync", number)
        with pytest.raises(StoreError, match="cannot write"):
            _ = store.is_conditional
    assert store.is_conditional
