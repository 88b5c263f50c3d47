# SPDX-License-Identifier: Apache-2.0
"""A real systemd as PID 1, booted in a second on this machine's own /usr, and gone without a trace.

It is no test: which units run, and with what in place of the user's paths, is said by the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Self

from tests.real.namespace import wait_until

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
OUR_PROGRAM = (
    # The interpreter of a developer is at home, and a checkout may be below /tmp: the unit hides both.
    f"ProtectHome=no\nBindReadOnlyPaths={ROOT} {sys.prefix} {sys.base_prefix}\n"
    f"ExecStart=\nExecStart={sys.executable} -m spotwatch run\n"
)
"""Lines for a drop-in's [Service]: the daemon under test in place of the installed one, in its sandbox."""
POLKIT_RULES = Path("/etc/polkit-1/rules.d/50-spotwatch.rules")
# Empty, as on the first boot of an image: volatile keeps /usr of this machine and nothing else of it.
_OPTIONS = ("--quiet", "--directory=/", "--volatile=yes", "--boot", "--register=no", "--keep-unit")

# What outlives a reboot; of /usr the one place that an install writes to. /root is named to be open: an
# interpreter may lie in there, and all users run it.
_KEPT = ("etc", "opt", "root", "usr/local/bin", "var/lib", "var/log/journal")

OUR_BOOT = "BindReadOnlyPaths=/run/boot-id:/proc/sys/kernel/random/boot_id\n"
"""A line for a drop-in's [Service] where a reboot matters: a unit with a /proc of its own sees the host's."""


def _own_group() -> Path:
    """Return the folder of this process's control group in the unified hierarchy."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    root = next(line.split()[1] for line in mounts if line.split()[2] == "cgroup2")
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    return Path(root) / next(line for line in lines if line.startswith("0::")).removeprefix("0::/")


class Machine:
    """One booted systemd without a network; use it as a context manager.

    Args:
        folder: becomes `/shared` inside, to be read and written from both sides.
    """

    def __init__(self, folder: Path) -> None:
        self._units = folder / "units"
        self._presets = folder / "presets"
        self.kept = folder / "kept"
        self.shared = folder / "shared"
        self._log = folder / "boot.log"
        self._leader = 0
        self._name = f"spotwatch-{uuid.uuid4().hex[:8]}"
        # Two machines in one group would share the groups of their units, and kill each other's processes.
        self._group = _own_group() / self._name

    def __enter__(self) -> Self:
        """Boot it and wait until it is up."""
        for folder in (self._units, self._presets, self.shared):
            folder.mkdir()
        # Nothing here is ever online, and our units want to start after that; nobody answers the wizard.
        for name in ("systemd-networkd-wait-online.service", "systemd-firstboot.service"):
            (self._units / name).symlink_to("/dev/null")
        # On a first boot systemd enables whatever is installed on this machine: web and mail servers too.
        (self._presets / "00-none.preset").write_text("disable *\n", encoding="ascii")
        self.shared.chmod(0o777)
        self._group.mkdir()
        # Launchers look up the names of the machine that they run on.
        (self.kept / "etc").mkdir(parents=True)
        (self.kept / "etc/hosts").write_text(f"127.0.0.1 localhost {self._name}\n", encoding="ascii")
        self._boot()
        return self

    def _boot(self) -> None:
        binds = [f"--bind={self._units}:/run/systemd/system", f"--bind={self.shared}:/shared"]
        binds += [f"--bind={self._presets}:/run/systemd/system-preset"]
        boot_id = self.kept.parent / "boot-id"
        boot_id.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        binds += [f"--bind-ro={boot_id}:/run/boot-id"]
        for name in _KEPT:
            (self.kept / name).mkdir(parents=True, exist_ok=True)
            binds += [f"--bind={self.kept / name}:/{name}"]
        # The daemon's interpreter, its virtual environment and the package under test, where they are here.
        binds += [f"--bind-ro={path}" for path in sorted({str(ROOT), sys.prefix, sys.base_prefix})]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self._group)),
                    "systemd-nspawn",
                    *_OPTIONS,
                    "--private-network",
                    "--console=pipe",
                    f"--machine={self._name}",
                    *binds,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Tells nspawn to give systemd the unified hierarchy also where the host still has both.
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            )
        try:
            wait_until(self._is_up, 15, f"a booted systemd; its console is in {self._log}")
        except BaseException:
            self.__exit__()
            raise

    def reboot(self) -> None:
        """Shut it down as a reboot does, and boot it with its units, /shared and what `_KEPT` names."""
        self.shut_down("reboot")
        self._boot()

    def shut_down(self, how: str) -> None:
        """Run `systemctl` with `how`, `poweroff` or `reboot`, and wait until the last process has gone."""
        self.run("systemctl", how)
        self._process.wait(40)
        self._leader = 0

    def __exit__(self, *_: object) -> None:
        """Switch it off and wait until it is gone."""
        # nspawn turns the signal into systemd's own word for "shut down".
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            for pid in (self._find_leader(), self._process.pid):
                if pid:
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        wait_until(self._has_left_no_group, 10, f"the last process of {self._group} to be gone")

    def _has_left_no_group(self) -> bool:
        try:
            for folder, _, _ in os.walk(self._group, topdown=False):
                Path(folder).rmdir()
        except OSError:
            return False
        return True

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        self._leader = self._find_leader()
        # "degraded" counts: an image without its first-boot wizard is none of our business.
        return bool(self._leader) and self.run("systemctl", "is-system-running").stdout.strip() in {
            "running",
            "degraded",
        }

    def _find_leader(self) -> int:
        """Return the pid, here, of the systemd inside; 0 while there is none.

        nspawn's first child only makes the second, and is still in our own process namespace: a command sent
        there would reach the systemd of this host.
        """
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        try:
            outside, inside = (Path(f"/proc/{pid}/ns/pid").readlink() for pid in ("self", *children[:1]))
        except (ValueError, FileNotFoundError):
            return 0
        return int(children[0]) if inside != outside else 0

    def run(self, *command: str, seconds: float = 15) -> subprocess.CompletedProcess[str]:
        """Run `command` inside and return how it went; `seconds` at most."""
        return subprocess.run(
            ["nsenter", f"--target={self._leader}", "--all", *command],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def begin(self, *command: str) -> subprocess.Popen[bytes]:
        """Begin `command` inside, for one that takes its time; the caller waits for it."""
        return subprocess.Popen(
            ["nsenter", f"--target={self._leader}", "--all", *command], stdin=subprocess.DEVNULL
        )

    def check(self, *command: str, user: str = "") -> str:
        """Run `command` inside, as `user` with all groups of theirs, and return what it printed.

        Raises:
            AssertionError: it failed; says what it printed.
        """
        done = self.run(
            *(["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []), *command
        )
        assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def prepare(self) -> None:
        """Make what our units expect: user and group, the polkit rule, a program that can be reached.

        Harmless when repeated.
        """
        self.check("systemd-sysusers", str(UNITS / "sysusers.conf"))
        rule = UNITS / POLKIT_RULES.name
        # In one step, as polkit reads the folder anew at once: a rule that it may not read yet is left out.
        self.check("install", "-D", "--mode=644", str(rule), f"{POLKIT_RULES}.new")
        self.check("mv", f"{POLKIT_RULES}.new", str(POLKIT_RULES))
        # The daemon's user must reach the interpreter, and root's home is closed to others.
        for folder in Path(sys.base_prefix).parents:
            self.check("chmod", "a+x", str(folder))
        # nspawn covers the kernel's boot id in its own /proc, but a unit with ProtectProc= gets a new /proc:
        # daemon and trainer would be of different boots. After `reboot` use ProtectProc=default.
        self.run("umount", "/proc/sys/kernel/random/boot_id")

    def install(self, name: str, drop_in: str, *shipped: str) -> None:
        """Install our unit `name`, with `drop_in` in place of what a user would change.

        Args:
            name: of the unit; what it expects of the machine is made too.
            drop_in: goes last.
            shipped: names of drop-ins from `systemd/NAME.d`, such as `processes.conf`.
        """
        self.prepare()
        (self._units / name).write_text((UNITS / name).read_text(encoding="utf-8"), encoding="utf-8")
        folder = self._units / f"{name}.d"
        # What an earlier test has put there goes.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for one in shipped:
            (folder / one).write_text(
                (UNITS / f"{name}.d" / one).read_text(encoding="utf-8"), encoding="utf-8"
            )
        (folder / "zz-test.conf").write_text(drop_in, encoding="utf-8")
        # Enabled, so that systemd keeps what it knows of the unit when it is down.
        wanted = self._units / "multi-user.target.wants"
        wanted.mkdir(exist_ok=True)
        (wanted / name).unlink(missing_ok=True)
        (wanted / name).symlink_to(f"../{name}")
        self.check("systemctl", "daemon-reload")

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return properties of `unit` as systemd names them."""
        done = self.run("systemctl", "show", unit, *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def journal(self, unit: str) -> str:
        """Return what `unit` has logged."""
        return self.run("journalctl", "--no-pager", f"--unit={unit}").stdout
