# SPDX-License-Identifier: Apache-2.0
"""The install where something is in its way or ends it early: nothing is lost, and the next run mends it.

A run that goes well is test_install's and test_install_again's. Each install takes some ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.machine import Machine
from tests.real.namespace import wait_until
from tests.real.test_install import _INSTALL, _TOML, _Reader, prepared
from tests.real.test_install_again import _make_unit

# A fixture, found by name in the module that asks for it.
__all__ = ["prepared"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

_SITE = "/opt/spotwatch/lib/python3*/site-packages"


@pytest.fixture
def reader(prepared: _Reader) -> Iterator[_Reader]:
    """Give a reader on a machine on which nothing of ours is left, before and after."""
    _clear(prepared)
    yield prepared
    _clear(prepared)


def _clear(reader: _Reader) -> None:
    reader.type("umount /etc/systemd/system /etc/polkit-1; systemctl stop mine spot-train")
    reader.type(f"{_INSTALL} --purge --force; userdel -r spotwatch; rm -rf /opt/spotwatch /etc/spotwatch")
    reader.type(
        "rm -rf /etc/systemd/system/*.service* /shared/checkout/spotwatch/late.py; systemctl daemon-reload"
    )


def _is_there(machine: Machine, path: str) -> bool:
    return machine.run("test", "-e", path).returncode == 0


def _install(reader: _Reader, options: str = "") -> str:
    done = reader.type(f"{_INSTALL} {options}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_lies_in_the_place_of_ours_stays(reader: _Reader) -> None:
    """A checkout in /opt/spotwatch, a unit of that name: refused before anything is made."""
    machine = reader.machine
    machine.check("cp", "-r", "/shared/checkout", "/opt/spotwatch")
    machine.check("touch", "/etc/systemd/system/spotwatch.service")
    before = reader.tree()
    for line, said in (
        ("/opt/spotwatch/systemd/install.sh", "this checkout lies in /opt/spotwatch"),
        (_INSTALL, "/opt/spotwatch is there and was not made here"),
        (f"rm -r /opt/spotwatch && {_INSTALL}", "spotwatch.service is there and was not made here"),
    ):
        for last in (line, f"{line} --dry-run"):
            done = reader.type(last.replace("rm -r /opt", "mv /opt/spotwatch /srv/; true /opt"))
            assert (done.returncode, said in done.stderr) == (1, True), done.stdout + done.stderr
        reader.type("mv /srv/spotwatch /opt/")
        assert reader.tree() == before
    reader.type(f"rm -r /etc/systemd/system/spotwatch.service; {_INSTALL} --purge")
    assert _is_there(machine, "/opt/spotwatch/pyproject.toml")


def test_a_removal_takes_nothing_that_was_there_before(reader: _Reader) -> None:
    """A user of that name, a trainer's unit of that name, files in our folders: all stay."""
    machine = reader.machine
    machine.check("useradd", "--create-home", "--home-dir", "/var/lib/home-of-spotwatch", "spotwatch")
    _make_unit(machine, "spot-train", "User=games\n")
    machine.check("systemctl", "start", "spot-train")
    machine.check("sh", "-c", "mkdir /etc/spotwatch; echo mine > /etc/spotwatch/mine.txt")
    _install(reader)
    assert machine.show("spot-train", "SuccessExitStatus") == {"SuccessExitStatus": "75"}
    machine.check("sh", "-c", "mkdir /opt/spotwatch/runs; echo weights > /opt/spotwatch/runs/model.pt")
    purged = _install(reader, "--purge")
    assert "disabled" not in purged
    assert "kept /opt/spotwatch: there is something in it that was not made here" in purged
    for path in ("/etc/spotwatch/mine.txt", "/opt/spotwatch/runs/model.pt", "/var/lib/home-of-spotwatch"):
        assert _is_there(machine, path), path
    assert machine.check("ls", "/opt/spotwatch") == "runs\n"
    assert machine.run("getent", "passwd", "spotwatch").returncode == 0
    assert not _is_there(machine, "/etc/systemd/system/spot-train.service.d")
    machine.check("systemctl", "restart", "spot-train")


def test_the_release_before_is_back_after_an_update_that_failed(reader: _Reader) -> None:
    """The package is new, a later step failed: what is installed is what the next run is given."""
    machine = reader.machine
    _install(reader)
    machine.check("touch", "/shared/checkout/spotwatch/late.py")
    machine.check("sh", "-c", "echo '# more' >> /etc/systemd/system/spotwatch.service")
    machine.check("mount", "--bind", "/etc/systemd/system", "/etc/systemd/system")
    machine.check("mount", "-o", "remount,bind,ro", "/etc/systemd/system")
    failed = reader.type(_INSTALL)
    assert (failed.returncode, "cannot write /etc/systemd/system/spotwatch.service" in failed.stderr) == (
        1,
        True,
    )
    machine.check("umount", "/etc/systemd/system")
    machine.check("rm", "/shared/checkout/spotwatch/late.py")
    _install(reader)
    assert machine.run("sh", "-c", f"ls {_SITE}/spotwatch/late.py").returncode != 0


def test_killed_while_pip_replaces_the_package(reader: _Reader) -> None:
    """The next run installs it, whatever source it is given, and leaves nothing of pip's behind."""
    machine = reader.machine
    _install(reader)
    # As pip leaves it: renamed, and the new one not there yet; the sum is forgotten before that.
    machine.check("sh", "-c", f"cd {_SITE} && mv spotwatch '~potwatch' && rm /opt/spotwatch/bin/spotwatch")
    machine.check("rm", "/opt/spotwatch/source.sum")
    _install(reader)
    assert machine.show("spotwatch", "ActiveState") == {"ActiveState": "active"}
    assert machine.run("sh", "-c", f"ls -d {_SITE}/~*").returncode != 0


def test_what_was_chosen_outlives_a_package_that_is_made_anew(reader: _Reader) -> None:
    """Without pip, and at first with no packages to take: unit, drop-in and rule stay as they were."""
    machine = reader.machine
    _make_unit(machine, "mine", "User=games\n")
    _install(reader, "--unit mine --with processes")
    machine.check("sh", "-c", f"rm -r {_SITE}/pip")
    assert reader.type(f"PIP_FIND_LINKS=/nowhere {_INSTALL}").returncode != 0
    _install(reader)
    assert 'units = ["mine.service"]' in machine.check("cat", "/etc/polkit-1/rules.d/50-spotwatch.rules")
    assert _is_there(machine, "/etc/systemd/system/spotwatch.service.d/processes.conf")
    assert not _is_there(machine, "/etc/systemd/system/spot-train.service")
    machine.check("systemctl", "restart", "mine")
    reader.type("sudo spotwatch trigger stop --why test")
    wait_until(
        lambda: machine.show("mine", "ActiveState") == {"ActiveState": "inactive"},
        40,
        machine.journal("spotwatch"),
    )


def test_a_half_done_install_is_removed_whole(reader: _Reader) -> None:
    """Ended before its rules, or its record gone: the user's unit starts as before."""
    machine = reader.machine
    _make_unit(machine, "mine", "User=games\n")
    machine.check("mount", "--bind", "/etc/polkit-1", "/etc/polkit-1")
    machine.check("mount", "-o", "remount,bind,ro", "/etc/polkit-1")
    assert reader.type(f"{_INSTALL} --unit mine").returncode == 1
    assert _is_there(machine, "/etc/systemd/system/mine.service.d/50-spotwatch.conf")
    machine.check("umount", "/etc/polkit-1")
    machine.check("rm", "/etc/spotwatch/install.options")
    _install(reader, "--purge")
    assert not _is_there(machine, "/etc/systemd/system/mine.service.d")
    machine.check("systemctl", "restart", "mine")


def test_installed_again_for_another_unit(reader: _Reader) -> None:
    """Removed but for its configuration, which nobody edited: it follows the new options."""
    machine = reader.machine
    _install(reader)
    _install(reader, "--uninstall")
    _make_unit(machine, "mine", "User=games\n")
    said = _install(reader, "--unit mine --with none")
    assert "as you made it" not in said
    assert machine.check("cat", _TOML).endswith('unit = "mine.service"\n')
    assert not _is_there(machine, "/etc/systemd/system/spotwatch.service.d")
