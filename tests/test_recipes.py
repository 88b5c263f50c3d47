# SPDX-License-Identifier: Apache-2.0
"""The shipped recipes, read as their engines read them: forms, rules for exit statuses, links of the pages.

Nothing of AWS, SkyPilot or Ray runs here. What runs torchrun is in a module of its own, Slurm in tests/real.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import botocore.validate
import pytest
import yaml

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
PAGES = Path(__file__).parents[1] / "docs" / "recipes"


@pytest.mark.parametrize("script", sorted(RECIPES.glob("*.s*")), ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    """Bash reads each script to its end."""
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)


@pytest.mark.parametrize("program", sorted(RECIPES.glob("*.py")), ids=lambda path: path.name)
def test_programs_parse(program: Path) -> None:
    """Python reads each program, also of an engine that is not installed here."""
    compile(program.read_text(encoding="utf-8"), str(program), "exec")


def test_slurm_asks_for_what_its_page_promises() -> None:
    """The options that a requeue after a save stands on."""
    text = (RECIPES / "slurm.sbatch").read_text(encoding="utf-8")
    options = re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE)
    assert {"--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= set(options)
    assert any(re.fullmatch(r"--signal=TERM@\d+", option) for option in options)


def test_skypilot_recovers_from_75_and_76_alone() -> None:
    """The task says to start again after a stop, and not when another machine has the run."""
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text(encoding="utf-8"))
    assert task["resources"]["use_spot"] is True
    assert task["resources"]["job_recovery"] == {"recover_on_exit_codes": [75, 76]}
    subprocess.run(["bash", "-n"], input=task["run"], text=True, check=True, timeout=10)


def test_skypilot_names_each_start_anew_and_alike_on_all_nodes(tmp_path: Path) -> None:
    """A recovery keeps the task's id: without other addresses in it, a straggler could join the next."""
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text(encoding="utf-8"))
    (tmp_path / "torchrun-node.sh").write_text('echo "$NODE $HEAD $ATTEMPT"\n', encoding="utf-8")

    def start(node: str, *addresses: str) -> list[str]:
        variables = {
            "NUM_NODES": "2",
            "NODE_RANK": node,
            "NODE_IPS": "\n".join(addresses),
            "TASK_ID": "t_id-14-0",
        }
        environment = {f"SKYPILOT_{name}": value for name, value in variables.items()}
        command = ["bash", "-e", "-c", task["run"]]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.split()

    first = start("0", "10.0.0.5", "10.0.0.6")
    other = start("1", "10.0.0.5", "10.0.0.6")
    recovered = start("0", "10.0.0.5", "10.0.0.9")
    assert (first[:2], other[:2]) == (["0", "10.0.0.5"], ["1", "10.0.0.5"])
    assert first[2] == other[2] != recovered[2]


@pytest.mark.parametrize(
    ("file", "service", "operation"),
    [
        ("batch-job.json", "batch", "RegisterJobDefinition"),
        ("sagemaker-job.json", "sagemaker", "CreateTrainingJob"),
    ],
)
def test_aws_takes_the_form(file: str, service: str, operation: str) -> None:
    """Names and types are those of the service's own model; what that leaves open, AWS was not asked."""
    client: Any = boto3.client(
        service,
        region_name="us-east-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
    )
    shape = client.meta.service_model.operation_model(operation).input_shape
    request = json.loads((RECIPES / file).read_text(encoding="utf-8"))
    report = botocore.validate.ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize(
    ("code", "reason", "action"),
    [
        (75, "Essential container in task exited", "RETRY"),
        (76, "Essential container in task exited", "RETRY"),
        (77, "Essential container in task exited", "EXIT"),
        (1, "Essential container in task exited", "EXIT"),
        (137, "Host EC2 (instance i-0123456789abcdef0) terminated.", "RETRY"),
    ],
)
def test_batch_retries_what_was_stopped(code: int, reason: str, action: str) -> None:
    """The first rule that matches decides, as Batch documents; a program's own failure is not repeated."""
    definition = json.loads((RECIPES / "batch-job.json").read_text(encoding="utf-8"))
    rules = definition["retryStrategy"]["evaluateOnExit"]
    assert len(rules) <= 5  # API_RetryStrategy, 2026
    assert next(rule["action"] for rule in rules if _matches(rule, code, reason)) == action


def _matches(rule: dict[str, str], code: int, reason: str) -> bool:
    """Tell whether all conditions hold; a star at the end stands for anything."""
    for pattern, value in ((rule.get("onExitCode"), str(code)), (rule.get("onStatusReason"), reason)):
        if pattern is not None and not re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), value):
            return False
    return True


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.name)
def test_pages_name_files_that_are_there(page: Path) -> None:
    """Every file below examples/recipes that a page names exists, and so does every page it links to."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / name).exists(), name


def test_commands_are_ours() -> None:
    """What the AWS files start is a command line that `spotwatch exec` takes."""
    batch = json.loads((RECIPES / "batch-job.json").read_text(encoding="utf-8"))
    sagemaker = json.loads((RECIPES / "sagemaker-job.json").read_text(encoding="utf-8"))
    for command in (
        batch["containerProperties"]["command"],
        sagemaker["AlgorithmSpecification"]["ContainerEntrypoint"],
    ):
        ours = command[: command.index("--")]
        run = subprocess.run(
            [sys.executable, "-m", *ours, "--print-config", "--", "true"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, shlex.join(ours) + run.stderr
