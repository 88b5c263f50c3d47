# SPDX-License-Identifier: Apache-2.0
"""The images of the tests: a stand-in for Python's own, made of this machine, and ours built upon it.

No registry of images is in reach, so `python:3.12-slim-bookworm` is Debian's packages and this machine's
CPython, cut down as the official one is. The Dockerfile that is built upon it is the shipped one, unchanged.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.containers import Podman

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "containers"
BASE = "localhost/python:3.12-slim-bookworm"
IMAGE = "localhost/spotwatch:test"
FULL = "localhost/spotwatch:test-full"
_SUITE = "bookworm"
# What CPython's own modules load, and what pip needs to trust an index.
_PACKAGES = ",".join(
    (
        *("ca-certificates", "libssl3", "libsqlite3-0", "libffi8", "libbz2-1.0", "liblzma5", "zlib1g"),
        *("libreadline8", "libuuid1", "libncursesw6"),
    )
)
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
# The official image has no tests, no static library and no bytecode either.
_CUT = ("test", "tests", "idle_test", "__pycache__", "*.a", "*.pyc", "site-packages", "turtledemo")


def load_base(podman: Podman) -> str:
    """Put the base image into the store and return its name; 60 s when it is made, 5 s from the cache."""
    if podman("image", "exists", BASE, check=False).returncode == 0:
        return BASE
    archive = CACHE / f"base-{_key()}.tar"
    with _alone(archive):
        if not archive.exists():
            _make_base(archive)
    variables = {"PATH": _PATH, "LANG": "C.UTF-8"}
    # Where packages come from is this machine's business: it belongs to the base, not to the Dockerfile.
    variables |= {name: os.environ[name] for name in ("PIP_INDEX_URL",) if name in os.environ}
    changes = [f"--change=ENV {name}={value}" for name, value in variables.items()]
    podman("import", *changes, '--change=CMD ["python3"]', str(archive), BASE, seconds=120)
    return BASE


def load_image(podman: Podman, target: str, name: str) -> str:
    """Put one of our images into the store and return its name; 30 s when it is built, 5 s from the cache.

    The cache is of this checkout's own files: whatever the build reads makes another key.
    """
    archive = CACHE / f"{target}-{_key_of_sources()}.tar"
    if podman("image", "exists", name, check=False).returncode == 0:
        return name
    with _alone(archive):
        if archive.exists():
            podman("load", f"--input={archive}", seconds=120)
            return name
        load_base(podman)
        podman.build(name.removeprefix("localhost/"), f"--target={target}", folder=ROOT)
        for old in CACHE.glob(f"{target}-*.tar"):
            old.unlink()
        part = archive.with_suffix(".part")
        podman("save", f"--output={part}", name, seconds=120)
        part.rename(archive)
    return name


def _find_python() -> Path:
    """Return the prefix of a CPython 3.12 on this machine, else of the one that runs."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return max(versions.glob("3.12.*"), default=Path(sys.base_prefix))


def _key() -> str:
    steps = "".join(inspect.getsource(step) for step in (_make_base, _add_python))
    recipe = [steps, _SUITE, _PACKAGES, repr(_CUT), str(_find_python()), _CERTIFICATES.read_text()]
    return hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]


def _key_of_sources() -> str:
    files = [
        ROOT / name for name in ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE")
    ]
    files.append(ROOT / "examples" / "train.py")
    for folder in ("spotwatch", "deploy/container"):
        files += sorted(
            path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
    digest = hashlib.sha256(_key().encode())
    for file in files:
        digest.update(f"\0{file.relative_to(ROOT)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _make_base(archive: Path) -> None:
    """Write the files of the base image as one tar archive."""
    tree = archive.with_suffix(".tree")
    shutil.rmtree(tree, ignore_errors=True)
    try:
        options = ["--quiet", "--variant=minbase", f"--include={_PACKAGES}"]
        # The official one has no manual pages and no translations either.
        options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
        _run("mmdebstrap", *options, _SUITE, str(tree))
        _add_python(tree)
        shutil.copy(_CERTIFICATES, tree / _CERTIFICATES.relative_to("/"))
        (tree / "etc/pip.conf").write_text(f"[global]\ncert = {_CERTIFICATES}\n", encoding="ascii")
        _run("chroot", str(tree), "ldconfig")
        _run("chroot", str(tree), "apt-get", "clean")
        shutil.rmtree(tree / "var/lib/apt/lists")
        part = archive.with_suffix(".part")
        _run("tar", f"--directory={tree}", "--create", f"--file={part}", ".")
        part.rename(archive)
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _add_python(tree: Path) -> None:
    """Copy the interpreter to /usr/local, with pip and no other package."""
    prefix = _find_python()
    local = tree / "usr/local"
    shutil.copytree(prefix, local, ignore=shutil.ignore_patterns(*_CUT), symlinks=True, dirs_exist_ok=True)
    (library,) = local.glob("lib/python3.*")
    packages = prefix / library.relative_to(local) / "site-packages"
    for source in packages.glob("pip*"):
        shutil.copytree(source, library / "site-packages" / source.name, symlinks=True)
    for script in (local / "bin").iterdir():
        # Scripts name the interpreter where it came from.
        if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            lines = script.read_bytes().split(b"\n", 1)
            script.write_bytes(f"#!/usr/local/bin/{library.name}\n".encode() + lines[1])


@contextmanager
def _alone(archive: Path) -> Iterator[None]:
    """Keep other runs from making an archive of the same kind."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{archive.name.partition('-')[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
