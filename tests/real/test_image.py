# SPDX-License-Identifier: Apache-2.0
"""The image that the Dockerfile makes: what is in it, and that it runs with no right it does not need."""

from __future__ import annotations

import json
import re
import signal
import tomllib
from collections.abc import Iterator

import pytest

from tests.real import images
from tests.real.containers import Podman
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

# Nothing but the daemon: what is added here is carried by every pod.
_DISTRIBUTIONS = {
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "cattrs", "click", "frozenlist", "idna"),
    *("multidict", "prometheus-client", "propcache", "spotwatch", "structlog", "typing-extensions", "yarl"),
}
_NOT_HERE = ("pip", "boto3", "requests", "pytest", "torch", "ensurepip", "tests")
_OWN_LAYERS_BYTES = 45_000_000
_RESIDENT_KB = 64 * 1024
# What docs/container.md and the manifests of Kubernetes run it with.
LOCKED_DOWN = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
OPEN = "--volume=/run/spotwatch"


@pytest.fixture
def daemon(podman: Podman, image: str) -> Iterator[str]:
    """Give the name of a running daemon that may do nothing it need not, and may write to one place only."""
    name = podman.start(image, options=(*LOCKED_DOWN, OPEN))
    podman.wait_for_log(name, '"watching"', 60)
    yield name
    podman.remove(name)


def test_it_holds_the_daemon_and_nothing_else(podman: Podman, image: str) -> None:
    """Its distributions are those listed, at the versions pinned; what must not be there is not found."""
    script = (
        "import importlib.metadata as m, importlib.util as u, json, sys\n"
        "print(json.dumps([{d.name: d.version for d in m.distributions()},"
        " [n for n in sys.argv[1:] if u.find_spec(n)]]))"
    )
    done = podman.once(image, "-c", script, *_NOT_HERE, options=["--entrypoint=python"])
    assert done.returncode == 0, done.stderr
    versions, there = json.loads(done.stdout)
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in versions.items()}
    assert set(names) == _DISTRIBUTIONS
    assert there == []
    pinned = (images.ROOT / "deploy/container/constraints.txt").read_text(encoding="utf-8")
    for name, version in names.items():
        assert name == "spotwatch" or f"\n{name}=={version}\n" in pinned


def test_nothing_is_compiled_at_run_time(podman: Podman, image: str) -> None:
    """Our modules and Python's are there in bytecode that needs no check."""
    script = (
        "import glob, json\n"
        "files = [f for r in ('/opt/spotwatch/lib', '/usr/local/lib') for f in glob.glob(r + '/**/*.pyc',"
        " recursive=True)]\n"
        "kinds = [open(f, 'rb').read(8)[4] for f in files]\n"
        "print(json.dumps([sorted(set(kinds)), len(kinds)]))"
    )
    done = podman.once(image, "-c", script, options=["--entrypoint=python"])
    kinds, count = json.loads(done.stdout)
    assert kinds == [1]  # PEP 552: by hash, unchecked
    assert count > 1000


def test_its_own_layers_are_small(podman: Podman, image: str, base_image: str) -> None:
    """What we add to Python's image stays below the size that the page states."""
    added = podman.inspect(image)["Size"] - podman.inspect(base_image)["Size"]
    assert 10_000_000 < added < _OWN_LAYERS_BYTES


def test_it_says_how_it_is_run(podman: Podman, image: str) -> None:
    """User by number, exec forms throughout, and labels with the version of pyproject.toml."""
    facts = podman.inspect(image)
    config = facts["Config"]
    project = tomllib.loads((images.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert config["User"] == "65532:65532"
    assert (config["Entrypoint"], config["Cmd"]) == (["spotwatch"], ["run"])
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert facts["Healthcheck"]["Test"] == ["CMD", "python", "-m", "spotwatch.healthz"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "spotwatch"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] == project["version"]


def test_it_needs_no_right(podman: Podman, daemon: str) -> None:
    """As 65532 without a capability, on a file system where only the shared folder can be written."""
    status = podman.exec(daemon, "cat", "/proc/1/status").stdout
    assert re.search(r"^Uid:\s+65532\s+65532\s+65532\s+65532$", status, re.MULTILINE)
    assert re.findall(r"^Cap\w+:\s+(\w+)$", status, re.MULTILINE) == ["0" * 16] * 5
    assert "NoNewPrivs:\t1" in status
    for place in ("/opt/spotwatch/x", "/etc/spotwatch/x", "/x"):
        assert podman.exec(daemon, "touch", place).returncode != 0
    resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert resident
    assert int(resident[1]) < _RESIDENT_KB


def test_check_answers_inside(podman: Podman, daemon: str) -> None:
    """`spotwatch check` finds the daemon and its places, and nothing that would fail."""
    done = podman.exec(daemon, "spotwatch", "check", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert rows["runtime_dir"]["found"].startswith("/run/spotwatch/shared, uid 65532")
    assert rows["daemon"]["result"] == rows["http"]["result"] == "ok"


def test_health_follows_the_daemon(podman: Podman, daemon: str) -> None:
    """Healthy; unhealthy, with a reason, while it hangs; healthy again."""
    assert podman("healthcheck", "run", daemon, check=False).returncode == 0
    podman.signal(daemon, signal.SIGSTOP)
    hangs = podman.exec(daemon, "python", "-m", "spotwatch.healthz")
    assert (hangs.returncode, hangs.stdout) == (
        1,
        "0.0.0.0:9475: no answer within 3 s, the daemon hangs\n",
    )
    assert podman("healthcheck", "run", daemon, check=False).returncode == 1
    podman.signal(daemon, signal.SIGCONT)
    wait_until(lambda: podman("healthcheck", "run", daemon, check=False).returncode == 0, 30, "health")


def test_health_follows_the_address(podman: Podman, image: str) -> None:
    """A listener that is configured elsewhere is asked there, and one that is off is said to be."""
    name = podman.start(image, options=[OPEN, "--env=SPOTWATCH_HTTP__LISTEN=127.0.0.1:9999"])
    ask = ("python", "-m", "spotwatch.healthz")
    wait_until(lambda: podman.exec(name, *ask).stdout == "127.0.0.1:9999: ok\n", 60, "an answer")
    off = podman.exec(name, *ask, options=["--env=SPOTWATCH_HTTP__LISTEN="])
    assert (off.returncode, off.stdout.partition(":")[0]) == (1, "http.listen is off")
    podman.remove(name)


def test_sigterm_ends_it(podman: Podman, daemon: str) -> None:
    """`docker stop` needs no kill: it ends with 0, and says that it does."""
    podman("stop", "--time=30", daemon)
    assert podman.wait(daemon, 5) == 0
    assert '"event": "ending"' in podman.logs(daemon)


def test_what_is_left_out_is_named(podman: Podman, image: str) -> None:
    """A command that needs a library of the other image says so in a line, and exits with 2."""
    for command, library in (("status", "requests"), ("checkpoints list s3://bucket/run", "boto")):
        done = podman.once(image, *command.split(), options=["--env=AWS_DEFAULT_REGION=us-east-1"])
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith(f"spotwatch: this needs {library}")
        assert "--target full" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_platform_may_choose_the_user(podman: Podman, image: str) -> None:
    """As OpenShift runs it: a uid that no file knows, in group 0; also the state is kept."""
    name = podman.start(
        image, options=(*LOCKED_DOWN, OPEN, "--user=1000680000:0", "--volume=/var/lib/spotwatch")
    )
    podman.wait_for_log(name, '"watching"', 60)
    assert '"state_dir": "/var/lib/spotwatch"' in podman.logs(name)
    assert podman.exec(name, "spotwatch", "trigger", "flush").returncode == 0
    podman.remove(name)


def test_without_a_volume_it_says_what_is_missing(podman: Podman, image: str) -> None:
    """On a read-only file system with nowhere to meet it starts nothing, and exits with 2 and the path."""
    done = podman.once(image, options=LOCKED_DOWN)
    assert done.returncode == 2
    assert "/run/spotwatch/shared cannot be made" in done.stderr


def test_a_directory_open_to_all_is_refused(podman: Podman, image: str) -> None:
    """The volume itself, open as an emptyDir is, is no runtime directory: anyone could stop the trainer."""
    done = podman.once(image, options=[OPEN, "--env=SPOTWATCH_RUNTIME_DIR=/run/spotwatch"])
    assert done.returncode == 2
    assert "writable by everyone" in done.stderr


def test_the_full_image_reads_mail_and_asks_the_daemon(podman: Podman) -> None:
    """`--target full` has what the other leaves out: 30 s for the build."""
    full = images.load_image(podman, "full", images.FULL)
    name = podman.start(full, options=(*LOCKED_DOWN, OPEN))
    wait_until(lambda: podman.exec(name, "spotwatch", "status").returncode == 0, 60, "its status")
    imports = "import boto3, dkim, dns, cryptography, requests"
    assert podman.exec(name, "python", "-c", imports).returncode == 0
    assert podman.exec(name, "python", "-c", "import pip").returncode != 0
    podman.remove(name)
