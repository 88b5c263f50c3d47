# SPDX-License-Identifier: Apache-2.0
"""Who among a family of processes is the trainer: below launchers and wrappers, beside workers.

What counts is documented by the sets in this file; all of it is pure but for the environment of launchers'
children. It does not find the family's head and signals nobody. Standard library only.

- A *launcher* (torchrun, accelerate launch, deepspeed) runs one process a device and kills them 30 s after
  its own SIGTERM: its local ranks are told instead, those children that were started with LOCAL_RANK, or
  else its python children (`accelerate launch` with one process sets none).
- A *wrapper* (sudo, timeout, tini, uv …) may not hand signals on: its children are told instead, of several
  those that are python.
- A *shell* may be a wrapper, `sh -c 'python train.py'` dies and leaves python unaware, or the trainer: which
  it is is `_shells`' matter.
- A *helper* (DataLoader workers, the processes of multiprocessing and joblib) never is the trainer: SIGTERM
  kills it, and the trainer's last save with it.
- A *bystander* only mentions the trainer: an editor, a pager, tmux, ssh, and spotwatch's own commands.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import Literal

from spotwatch.errors import ActionError
from spotwatch.targets import _shells
from spotwatch.targets._proc import Row, read_variable

Leaves = Literal["auto", "always", "never"]
Variable = Callable[[int, str], str | None]
"""How a variable of a process' first environment is read, by pid and name."""

_PYTHON = re.compile(r"(python|pypy)[0-9.]*(-dbg)?")
_LAUNCHER_NAMES = frozenset({"torchrun", "deepspeed", "accelerate-launch"})
_LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)
_WRAPPERS = frozenset(
    {
        *_shells.NAMES,
        *("sudo", "su", "runuser", "doas", "timeout", "time", "setsid", "flock", "unshare", "script"),
        *("tini", "tini-static", "dumb-init", "catatonit", "docker-init"),
        *("uv", "poetry", "pipenv", "pixi", "conda", "micromamba", "hatch", "strace", "nsys"),
    }
)
_BYSTANDERS = frozenset(
    {
        *("vi", "vim", "nvim", "nano", "emacs", "code", "less", "more", "cat", "head", "tail", "tee"),
        *("grep", "rg", "awk", "sed", "watch", "ps", "pgrep", "pkill", "htop", "top", "journalctl", "git"),
        *("ssh", "scp", "rsync", "mosh-server", "tmux", "screen", "SCREEN"),
        *("srun", "sbatch", "docker", "podman", "nerdctl", "kubectl", "conmon", "systemctl", "systemd-run"),
    }
)
_HELPER_MARKS = (
    "--multiprocessing-fork",
    "from multiprocessing.",
    "from joblib.externals.loky.",
    "joblib.externals.loky.backend.popen_loky_posix",
    "torch/_inductor/compile_worker/",
)
# torch.utils.data._utils.worker names its workers so, from torch 2.7.
_HELPER_COMM = "pt_data_worker"
_INTERPRETER_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_MAX_DEPTH = 8


def is_launcher(argv: tuple[str, ...]) -> bool:
    """Tell whether this command line starts local ranks and waits for them."""
    kind, program, rest = _program(argv)
    if kind == "module":
        return program in _LAUNCHER_MODULES or (program == "accelerate" and rest[:1] == ("launch",))
    if kind == "code":
        return False
    path = "." + program.removesuffix(".py").replace("/", ".")
    name = os.path.basename(program)  # noqa: PTH119 - a name out of argv, not a path of ours
    return (
        name in _LAUNCHER_NAMES
        or (name == "accelerate" and rest[:1] == ("launch",))
        or any(path.endswith(f".{module}") for module in _LAUNCHER_MODULES)
    )


def is_wrapper(argv: tuple[str, ...]) -> bool:
    """Tell whether this command line only runs another one below itself."""
    return _program(argv)[0] == "name" and _name(argv) in _WRAPPERS


def is_shell(argv: tuple[str, ...]) -> bool:
    """Tell whether this command line is a shell's."""
    return _name(argv) in _shells.NAMES


def is_python(argv: tuple[str, ...]) -> bool:
    """Tell whether this command line is a python interpreter's."""
    return bool(_PYTHON.fullmatch(_name(argv)))


def is_bystander(argv: tuple[str, ...]) -> bool:
    """Tell whether this command line only mentions a trainer, as an editor or `spotwatch exec` does."""
    kind, program, _ = _program(argv)
    if kind in ("module", "code"):
        return kind == "module" and program == "spotwatch"
    name = os.path.basename(program)  # noqa: PTH119 - a name out of argv, not a path of ours
    return name == "spotwatch" or (kind == "name" and _name(argv) in _BYSTANDERS)


def is_helper(row: Row, parent: Row | None) -> bool:
    """Tell whether a trainer made this process for its own use: its forked copy, or multiprocessing's."""
    if row.comm.startswith(_HELPER_COMM) or any(m in arg for arg in row.argv for m in _HELPER_MARKS):
        return True
    return parent is not None and bool(row.argv) and row.argv == parent.argv and is_python(row.argv)


def is_likely(argv: tuple[str, ...]) -> bool:
    """Tell whether a trainer is probably this process or below it."""
    return is_python(argv) or is_launcher(argv) or is_wrapper(argv)


def choose(
    head: Row,
    table: Mapping[int, Row],
    leaves: Leaves,
    matches: Callable[[Row], bool] = lambda _: False,
    variable: Variable = read_variable,
    *,
    signum: int = signal.SIGTERM,
) -> tuple[Row, ...]:
    """Return the processes to tell in the family of `head`, by pid.

    Args:
        head: the process found.
        table: all processes.
        leaves: `never` tells `head` itself, `always` those below, `auto` those below launchers and wrappers.
        matches: what the user asked for, to choose between a wrapper's children.
        variable: reads an environment.
        signum: what they would be told with.

    Raises:
        ActionError: there is nobody below, or no telling who is meant.
    """
    if leaves == "never":
        return (head,)
    found: list[Row] = []
    queue = [(head, leaves == "always", 0)]
    while queue:
        row, insist, depth = queue.pop()
        below_ranks = insist or is_launcher(row.argv)
        if depth > _MAX_DEPTH or not (below_ranks or is_wrapper(row.argv)):
            found.append(row)
            continue
        children = _children(row, table)
        chosen = _ranks(row, children, variable) if below_ranks else []
        children = [r for r in children if not is_helper(r, row) and not is_bystander(r.argv)]
        if not insist and is_shell(row.argv):
            handling = [r for r in children if _handles(r, table, signum)]
            children = _shells.below(
                row, children, handling, [r for r in children if is_likely(r.argv)], signum
            )
            if not children:
                found.append(row)
                continue
        chosen = chosen or _candidates(row, children, matches)
        queue += [(child, False, depth + 1) for child in chosen]
    return tuple(sorted(found, key=lambda row: row.pid))


def _children(row: Row, table: Mapping[int, Row]) -> list[Row]:
    return [r for r in table.values() if r.ppid == row.pid and not r.is_gone and not r.is_kernel]


def _handles(row: Row, table: Mapping[int, Row], signum: int, depth: int = 0) -> bool:
    """Tell whether `row`, or what it runs for its user, has a handler of its own for `signum`."""
    if is_launcher(row.argv):
        return True
    if not is_wrapper(row.argv):
        return row.catches(signum)
    # What `timeout` or `sudo` catch is handed on, and saves nothing.
    if is_shell(row.argv) and _shells.has_trap(row, signum):
        return True
    if depth > _MAX_DEPTH:
        return False
    below = (r for r in _children(row, table) if not is_bystander(r.argv) and not is_helper(r, row))
    return any(_handles(r, table, signum, depth + 1) for r in below)


def _ranks(parent: Row, children: list[Row], variable: Variable) -> list[Row]:
    ranks = []
    for row in children:
        rank = variable(row.pid, "LOCAL_RANK")
        # A forked copy of its parent has its parent's environment; a rank was given its own.
        is_copy = is_helper(row, parent) and rank == variable(parent.pid, "LOCAL_RANK")
        if rank is not None and not is_copy and not is_helper(row, None):
            ranks.append(row)
    return ranks


def _candidates(parent: Row, children: list[Row], matches: Callable[[Row], bool]) -> list[Row]:
    what = f"pid {parent.pid} ({_name(parent.argv)})"
    if not children:
        raise ActionError(f"{what} runs nothing at the moment that could be the trainer")
    likely = [r for r in children if is_likely(r.argv)]
    for group in ([r for r in likely if matches(r)], likely, [r for r in children if matches(r)]):
        if group:
            return group
    if len(children) > 1:
        raise ActionError(
            f"{what} runs {len(children)} processes and none is python: "
            "say with `process` which one is the trainer"
        )
    return children


def _name(argv: tuple[str, ...]) -> str:
    return os.path.basename(argv[0]).removeprefix("-") if argv else ""  # noqa: PTH119 - a name out of argv


def _program(argv: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Return how (name, or by python: module, script, code), what is run, and its arguments."""
    if not is_python(argv):
        return "name", argv[0] if argv else "", argv[1:]
    at = 1
    while at < len(argv):
        arg = argv[at]
        rest = argv[at + 1 :]
        if not arg.startswith("-"):
            return "script", arg, rest
        if not arg.startswith("--") and arg[-1] in "mc" and arg not in _INTERPRETER_OPTIONS_WITH_VALUE:
            return ("module" if arg[-1] == "m" else "code"), (rest[0] if rest else ""), rest[1:]
        at += 2 if arg in _INTERPRETER_OPTIONS_WITH_VALUE else 1
    return "code", "", ()
