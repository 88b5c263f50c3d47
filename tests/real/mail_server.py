# SPDX-License-Identifier: Apache-2.0
"""A Postfix of its own, on loopback, that pipes the mail for example.com into a command of ours.

It is no test, and touches nothing of a Postfix of this machine but its programs. Postfix never pipes as root,
and other users may not be allowed to run our interpreter: so it runs where they are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.real.machine import ROOT
from tests.real.namespace import wait_until

USER = "nobody"
TOOLS = ("postfix", "swaks", "unshare", "mount")

_MAIN = """
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
maillog_file = /dev/stdout
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = mail.example.com
mydestination =
alias_maps =
virtual_mailbox_domains = example.com
virtual_transport = spotwatch
default_transport = error
smtpd_recipient_restrictions = reject_unauth_destination
# A mail that was put off is tried again after five seconds instead of five minutes. After one second the
# program that put it off may still hold it, and then Postfix waits for those five minutes.
queue_run_delay = 2s
minimal_backoff_time = 5s
maximal_backoff_time = 5s
"""
_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
tlsmgr unix - - n 1000? 1 tlsmgr
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
error unix - - n - - error
retry unix - - n - - error
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
spotwatch unix - n n - - pipe flags=R user={user} argv={argv}
"""


class MailServer:
    """One Postfix; use it as a context manager.

    Args:
        argv: the command that gets each mail on its standard input.
    """

    def __init__(self, *argv: str) -> None:
        self._argv = argv

    def __enter__(self) -> Self:
        """Start it and wait until it takes mail."""
        # Not in pytest's own folder: other users may not enter it.
        self._folder = Path(tempfile.mkdtemp(prefix="spotwatch-mail-"))
        self._folder.chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        for name in ("queue", "data"):
            (self._folder / name).mkdir()
        # Elsewhere: Postfix looks at every file in its own folder before it starts.
        self._kept = Path(tempfile.mkdtemp(prefix="spotwatch-kept-"))
        shutil.chown(self._folder / "data", "postfix")
        facts = {"folder": self._folder, "port": self.port, "user": USER, "argv": " ".join(self._argv)}
        (self._folder / "main.cf").write_text(_MAIN.format(**facts))
        (self._folder / "master.cf").write_text(_MASTER.format(**facts))
        self._log = self._folder / "log"
        script = [*_let_in(self._kept), f"exec postfix -c {self._folder} start-fg"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(self._is_up, 15, f"Postfix to listen; its log is in {self._log}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it and remove its queue."""
        subprocess.run(["postfix", "-c", str(self._folder), "stop"], check=False, capture_output=True)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder)
        for place in self._kept.iterdir():
            place.rmdir()  # an empty one here; never a tree, for in the other namespace it is a real one
        self._kept.rmdir()

    def send(self, mail: bytes, *, to: str = "spot@example.com") -> subprocess.CompletedProcess[str]:
        """Hand over a mail by SMTP as a stranger's mail server does."""
        path = self._folder / "mail.eml"
        path.write_bytes(mail)
        return subprocess.run(
            [
                "swaks",
                *("--server", "127.0.0.1", "--port", str(self.port), "--helo", "mta.example.net"),
                *("--from", "bounces@digitalocean.com", "--to", to, "--data", f"@{path}"),
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    @property
    def log(self) -> str:
        """Return what it has said so far."""
        return self._log.read_text(errors="replace")

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _let_in(kept: Path) -> Iterable[str]:
    """Return shell commands after which everybody reaches our interpreter, in a mount namespace of its own.

    A folder on the way there that is closed to others is replaced by an empty one with only that way in it.
    """
    ways = sorted({ROOT, Path(sys.prefix), Path(sys.base_prefix)})
    closed = sorted({p for way in ways for p in way.parents if not p.stat().st_mode & 0o001})
    tops = [p for p in closed if not any(q in p.parents for q in closed)]
    for number, top in enumerate(tops):
        place = kept / str(number)
        place.mkdir()
        yield shlex.join(["mount", "--rbind", str(top), str(place)])
        yield shlex.join(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(top)])
        for way in ways:
            if top in way.parents:
                yield shlex.join(["mkdir", "-p", str(way)])
                yield shlex.join(["mount", "--bind", str(place / way.relative_to(top)), str(way)])


def private_file(path: Path, text: str, owner: str | int) -> Path:
    """Write a file that `owner` alone can read."""
    path.write_text(text)
    path.chmod(0o600)
    shutil.chown(path, owner)
    assert os.geteuid() == 0
    return path
