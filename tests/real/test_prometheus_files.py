# SPDX-License-Identifier: Apache-2.0
"""The files for Prometheus and Alertmanager, judged by promtool and amtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.real.conftest import _require
from tests.real.monitoring import DEPLOY

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

FILES = DEPLOY / "prometheus"
RULES = yaml.safe_load((FILES / "spotwatch.rules.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Give a copy of the files, beside which nothing else lies."""
    _require("promtool", "amtool")
    return Path(shutil.copytree(FILES, tmp_path / "prometheus"))


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a checker there."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_configurations(files: Path) -> None:
    """Prometheus's, its rules and Alertmanager's are accepted."""
    for command in (
        ("promtool", "check", "config", "prometheus.yml"),
        ("promtool", "check", "rules", "--lint-fatal", "spotwatch.rules.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ):
        done = run(files, *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cloud", ["ec2", "gce", "azure", "digitalocean"])
def test_the_examples_of_clouds_parse(files: Path, cloud: str) -> None:
    """Each, put in place of the file of machines as its comment says."""
    text = (files / "prometheus.yml").read_text(encoding="utf-8")
    block = re.search(rf"^    # {cloud}_sd_configs:\n(?:    # .*\n)*", text, re.MULTILINE)
    assert block
    example = re.sub(r"(?m)^    # ", "    ", block[0])
    text = re.sub(r"    file_sd_configs:\n(?:      .*\n|        .*\n)*", lambda _: example, text)
    (files / "prometheus.yml").write_text(text, encoding="utf-8")
    done = run(files, "promtool", "check", "config", "--syntax-only", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert {f"{cloud}_sd_configs", "relabel_configs"} <= set(job)


def test_an_alert_holds_back_only_its_own() -> None:
    """Each inhibition says what the two have in common: of two fleets one does not explain the other."""
    rules = yaml.safe_load((FILES / "alertmanager.yml").read_text(encoding="utf-8"))["inhibit_rules"]
    assert all(rule.get("equal") for rule in rules)


@pytest.mark.parametrize("cloud", ["gce", "digitalocean"])
def test_machines_of_one_name_are_told_apart(cloud: str) -> None:
    """Where names may be given twice, the label `instance` holds the number too."""
    text = (FILES / "prometheus.yml").read_text(encoding="utf-8")
    block = re.search(rf"^    # {cloud}_sd_configs:\n(?:    # .*\n)*", text, re.MULTILINE)
    assert block
    rows = yaml.safe_load(re.sub(r"(?m)^    # ", "", block[0]))["relabel_configs"]
    (instance,) = [row for row in rows if row.get("target_label") == "instance"]
    assert any(label.endswith("_id") for label in instance["source_labels"])


def test_the_rules_do_what_their_tests_say(files: Path) -> None:
    """Fire, keep still at the edge, resolve, outlive the machine, ignore NaN."""
    done = run(files, "promtool", "test", "rules", "spotwatch.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_that_never_fire_would_be_found(files: Path) -> None:
    """The rules' tests can fail, for each alert."""
    rules = yaml.safe_load((files / "spotwatch.rules.yml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["expr"] = f"({rule['expr']}) and vector(0) > 1"
    (files / "spotwatch.rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    done = run(files, "promtool", "test", "rules", "spotwatch.rules.test.yml")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert set(re.findall(r"alertname: ?(\w+)", said)) == {alert["alert"] for alert in ALERTS}, said[:2000]


def test_each_alert_says_what_to_do() -> None:
    """A severity that the routes know, a summary with the machine, a description, a place on the page."""
    page = (DEPLOY.parent / "docs/monitoring.md").read_text(encoding="utf-8")
    titles = re.findall(r"(?m)^#+ (.*)$", page)
    anchors = {re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in titles}
    for alert in ALERTS:
        assert alert["alert"].startswith("Spotwatch")
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert "{{ $labels.instance }}" in alert["annotations"]["summary"]
        assert len(alert["annotations"]["description"]) > 60
        where, _, anchor = alert["annotations"]["page"].partition("#")
        assert (where, anchor in anchors) == ("docs/monitoring.md", True), anchor
        assert f"`{alert['alert']}`" in page
