# SPDX-License-Identifier: Apache-2.0
"""docs/virtual-machine.md followed to the letter on a booted systemd, from the install to the last trace."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import wheelhouse
from tests.real.conftest import _require
from tests.real.machine import ROOT, Machine
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

_PAGE = ROOT / "docs" / "virtual-machine.md"
_INSTALL = "sudo systemd/install.sh"
_TRAIN = "/etc/systemd/system/spot-train.service"
_TOML = "/etc/spotwatch/spotwatch.toml"
# The one thing that the page says in words: two lines of the trainer's unit are the user's.
_FILL_IN = (
    "s#^WorkingDirectory=.*#WorkingDirectory=/srv/train#; s#^ExecStart=.*#ExecStart=/bin/bash train.sh#"
)
# The machine has no sudo that works; root's own is this.
_SUDO = """#!/bin/sh
set -eu
user=root
if [ "$1" = -u ]; then user=$2; shift 2; fi
exec setpriv --reuid="$user" --regid="$user" --init-groups "$@"
"""
# What every machine has, and this one, whose /etc is empty at first, has not.
_FOLDERS = (
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/sysusers.d",
    "/etc/polkit-1/rules.d",
    "/srv/train",
)
_PLACES = ("/etc", "/opt", "/usr/local/bin", "/var/lib", "/run/spotwatch")


class _Reader:
    """Somebody who reads the page on a machine and types what it says."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def type(self, line: str, *, seconds: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a line of the page, in the checkout, with no package index but the folder on this machine."""
        return self.machine.run(
            *(
                "env",
                "-i",
                "--chdir=/shared/checkout",
                "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME=/root",
                "LC_ALL=C",
            ),
            *(
                "PIP_NO_INDEX=1",
                "PIP_FIND_LINKS=/shared/wheels",
                "PIP_CONFIG_FILE=/dev/null",
                "PIP_NO_COMPILE=1",
            ),
            *("sh", "-c", line),
            seconds=seconds,
        )

    def follow(self, heading: str, number: int = 0) -> str:
        """Type a block of the page, each line of which must succeed, and return what was printed."""
        done = [self.type(line) for line in _block(heading, number)]
        said = "".join(one.stdout + one.stderr for one in done)
        assert all(one.returncode == 0 for one in done), said
        return said

    def tree(self) -> set[str]:
        """Return each file in the places that an install touches: kind, mode, owner, path and content."""
        listed = self.type(
            f"find {' '.join(_PLACES)} -xdev \\( -type f -printf '%m %u:%g %p ' -exec cksum {{}} \\; \\) "
            "-o -type l -printf '%p -> %l\\n' 2>/dev/null"
        ).stdout.splitlines()
        return {
            line for line in listed if not re.search(r" /etc/(\S+-|\.pwd\.lock) |/var/lib/systemd/", line)
        }


def _block(heading: str, number: int = 0) -> list[str]:
    section = re.search(rf"(?ms)^## {heading}\n(.*?)(?=^## |\Z)", _PAGE.read_text(encoding="utf-8"))
    assert section, heading
    blocks = re.findall(r"(?ms)^```bash\n(.*?)^```", section[1])
    return str(blocks[number]).splitlines()


@pytest.fixture(scope="module")
def prepared(lasting_machine: Machine) -> _Reader:
    """Give a reader on a machine with polkit, packages to install from, and a trainer in bash; 5 s."""
    _require("pkcheck", "dbus-daemon", "setpriv", wheelhouse.SYSTEM_PYTHON)
    wheelhouse.fill(lasting_machine.shared / "wheels")
    # A checkout of our own: that of a developer changes while the test runs, and so asks for an update.
    checkout = lasting_machine.shared / "checkout"
    shutil.copytree(ROOT / "systemd", checkout / "systemd")
    shutil.copytree(ROOT / "spotwatch", checkout / "spotwatch", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    lasting_machine.check("mkdir", "-p", *_FOLDERS)
    page = (ROOT / "docs" / "handshake.md").read_text(encoding="utf-8")
    script = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert script
    (lasting_machine.shared / "train.sh").write_text(script[1], encoding="utf-8")
    (lasting_machine.shared / "sudo").write_text(_SUDO, encoding="ascii")
    lasting_machine.check("cp", "/shared/train.sh", "/srv/train/")
    lasting_machine.check("install", "/shared/sudo", "/usr/local/bin/sudo")
    return _Reader(lasting_machine)


@pytest.fixture
def reader(prepared: _Reader) -> Iterator[_Reader]:
    """Give that reader, with nothing installed yet; afterwards it is removed again."""
    yield prepared
    prepared.type("systemctl stop spot-train")
    prepared.type(f"{_INSTALL} --purge")
    prepared.type("rm -rf /etc/systemd/system/*.service* /srv/train/progress")
    prepared.type("systemctl daemon-reload")


def test_the_page_from_install_to_removal(reader: _Reader) -> None:
    """Every command of the page, in its order, does what the page says; at the end nothing is left of it."""
    machine = reader.machine
    before = reader.tree()

    foretold, installed = (reader.type(line) for line in _block("Install"))
    assert foretold.returncode == installed.returncode == 0, (
        foretold.stderr + installed.stdout + installed.stderr
    )
    assert "would write: /etc/systemd/system/spotwatch.service" in foretold.stdout
    assert "ok    daemon " in installed.stdout
    assert machine.show("spotwatch", "ActiveState", "User", "UnitFileState") == {
        "ActiveState": "active",
        "User": "spotwatch",
        "UnitFileState": "enabled",
    }

    machine.check("sed", "-i", _FILL_IN, _TRAIN)
    machine.check("chown", "trainer", "/srv/train")
    reader.type("sudo systemctl daemon-reload")
    assert reader.type("sudo systemctl enable --now spot-train").returncode == 0
    assert "\nfail" not in reader.type("sudo spotwatch check").stdout

    _rehearse(reader)

    looked = reader.follow("Look")
    assert '"event": "ordered"' in looked
    assert "unit spot-train.service" in looked
    assert "spotwatch_" in looked

    pid = machine.show("spotwatch", "MainPID")
    edited = machine.check("cat", _TRAIN)
    assert reader.type(_block("Update")[1]).returncode == 0
    assert machine.show("spotwatch", "MainPID") == pid
    assert machine.check("cat", _TRAIN) == edited

    trainer = machine.show("spot-train", "MainPID")
    kept, purged = (reader.type(line) for line in _block("Remove"))
    assert kept.returncode == purged.returncode == 0, kept.stderr + purged.stderr
    assert machine.show("spot-train", "MainPID") == trainer
    assert "spot-train.service, which you edited" in kept.stdout
    assert "kept trainer and " in purged.stdout
    machine.check("systemctl", "disable", "--now", "spot-train")
    machine.check("rm", _TRAIN)
    assert reader.type(_block("Remove")[1]).returncode == 0
    assert reader.tree() == before
    assert machine.show("spotwatch", "LoadState") == {"LoadState": "not-found"}


def _rehearse(reader: _Reader) -> None:
    """Type the page's rehearsal block by block, and wait after each for what the page says."""
    machine, progress = reader.machine, "/srv/train/progress"

    def is_seen(state: dict[str, str]) -> None:
        wait_until(lambda: machine.show("spot-train", *state) == state, 40, machine.journal("spotwatch"))

    reader.follow("Rehearse", 0)
    wait_until(lambda: machine.run("test", "-s", progress).returncode == 0, 20, machine.journal("spotwatch"))
    reader.follow("Rehearse", 1)
    is_seen({"ActiveState": "inactive", "ExecMainStatus": "75"})
    status, again = _block("Rehearse", 2)
    assert "inactive (dead)" in reader.type(status).stdout
    assert reader.type(again).returncode == 0
    is_seen({"ActiveState": "active"})


def test_a_second_run_changes_nothing_and_one_with_options_only_that(reader: _Reader) -> None:
    """Idempotent; what was chosen is kept; an edited configuration stays; a drop-in comes and goes."""
    machine = reader.machine
    assert reader.type(_INSTALL).returncode == 0
    before, pid = reader.tree(), machine.show("spotwatch", "MainPID")
    assert reader.type(_INSTALL).returncode == 0
    assert (reader.tree(), machine.show("spotwatch", "MainPID")) == (before, pid)
    machine.check("sh", "-c", f"echo '# mine' >> {_TOML}")

    assert reader.type(f"{_INSTALL} --with processes --unit spot-train --unit other.service").returncode == 1
    (machine.shared / "other").write_text("[Service]\nUser=games\nExecStart=/bin/sleep 9\n", encoding="ascii")
    machine.check("cp", "/shared/other", "/etc/systemd/system/other.service")
    machine.check("systemctl", "daemon-reload")
    done = reader.type(f"{_INSTALL} --with processes --unit spot-train --unit other.service")
    assert done.returncode == 0, done.stderr
    assert "it does not name other.service" in done.stdout
    assert reader.type(_INSTALL).returncode == 0
    rule = machine.check("cat", "/etc/polkit-1/rules.d/50-spotwatch.rules")
    assert 'units = ["spot-train.service", "other.service"];' in rule
    assert machine.show("spotwatch", "AmbientCapabilities") == {"AmbientCapabilities": "cap_kill"}
    assert machine.show("other", "KillMode", "SupplementaryGroups") == {
        "KillMode": "mixed",
        "SupplementaryGroups": "spotwatch",
    }
    assert machine.check("tail", "-n1", _TOML) == "# mine\n"

    assert reader.type(f"{_INSTALL} --with as-root --unit spot-train").returncode == 0
    assert machine.run("test", "-e", "/etc/systemd/system/other.service.d").returncode == 1
    assert machine.show("spotwatch", "User", "ActiveState") == {"User": "root", "ActiveState": "active"}
    assert machine.run("test", "-e", "/etc/polkit-1/rules.d/50-spotwatch.rules").returncode == 1


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("sudo -u games systemd/install.sh", 1, "run it as root"),
        (f"{_INSTALL} --python /usr/bin/python9", 1, "there is no Python at /usr/bin/python9"),
        (f"{_INSTALL} --python /shared/old", 1, "3.11 is the oldest that will do"),
        (
            f"{_INSTALL} --python /shared/bare",
            1,
            "cannot make virtual environments: apt install python3-venv",
        ),
        (f"{_INSTALL} --from /nowhere", 1, "there is no /nowhere"),
        (f"{_INSTALL} --from /etc/passwd", 1, "/etc/passwd is neither a checkout nor a wheel"),
        (f"{_INSTALL} --extras nonsense", 2, "the extras are mail and fast, not nonsense"),
        (f"{_INSTALL} --trainer-user nobody-here", 1, "there is no user nobody-here"),
        (f"{_INSTALL} --with everything", 2, "there is no drop-in everything"),
        (f"{_INSTALL} --unit", 2, "--unit needs a value"),
        (f"{_INSTALL} --unit 'a;b'", 2, "has a character that none may have"),
        (f"{_INSTALL} --everything", 2, "unknown option --everything"),
        ("sudo env PATH=/shared/poor systemd/install.sh", 1, "there is no polkit on this machine"),
    ],
)
def test_what_cannot_work_is_refused(prepared: _Reader, line: str, status: int, said: str) -> None:
    """Nothing is changed, and one line says what is wrong and what to do."""
    _lay_out(prepared.machine.shared)
    before = prepared.tree()
    done = prepared.type(line)
    assert (done.returncode, said in done.stderr) == (status, True), done.stdout + done.stderr
    assert prepared.tree() == before


def _lay_out(shared: Path) -> None:
    """Put an old Python, one without `venv`, and a PATH without polkit into `shared`."""
    scripts = {
        "old": "#!/bin/sh\n[ $1 != --version ] || echo Python 3.10.4\n[ $1 = --version ]\n",
        "bare": '#!/bin/sh\ncase $2 in *venv*) exit 1 ;; esac\nexec /usr/bin/python3 "$@"\n',
    }
    for name, text in scripts.items():
        (shared / name).write_text(text, encoding="ascii")
        (shared / name).chmod(0o755)
    poor = shared / "poor"
    if not poor.exists():
        poor.mkdir()
        for folder in (Path("/usr/bin"), Path("/usr/sbin")):
            for tool in folder.iterdir():
                if not tool.name.startswith("pk") and not (poor / tool.name).is_symlink():
                    (poor / tool.name).symlink_to(tool)
