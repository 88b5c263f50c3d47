# SPDX-License-Identifier: Apache-2.0
"""What is set in the chart's values is what the daemon does, or is refused; its Secret can be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spotwatch
from spotwatch.cli._options import provider_config
from spotwatch.config import Settings
from spotwatch.config_load import load
from tests.manifests import Document, Helm, daemon_in, environment, make_helm, pod_of
from tests.open_folder import open_folder

pytestmark = pytest.mark.timeout(120)
_KEY = "whpk_" + "A" * 43 + "="


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Give the real helm."""
    return make_helm(tmp_path)


def settings_of(documents: list[Document], folder: Path) -> Settings:
    """Return what the daemon in the pod makes of its file and its variables."""
    (config,) = [d for d in documents if d["kind"] == "ConfigMap"]
    path = folder / "spotwatch.toml"
    path.write_text(config["data"]["spotwatch.toml"], encoding="utf-8")
    variables = environment(daemon_in(pod_of(documents)))
    return load(path=path, environ=variables, flags={}, provider_configs=provider_config).settings


_TAKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"cloud": "aws"}, 'providers = ["gcp"]', "providers.*the value cloud"),
    ({}, "[policy]\nsave_seconds = 300", "policy.save_seconds.*spotwatch.saveSeconds"),
    ({}, "policy.save_seconds = 300", "policy.save_seconds"),
    ({}, "policy = { safety_factor = 2.0, save_seconds = 300 }", "policy.save_seconds"),
    ({}, '["policy"]\n"save_seconds" = 300', "policy.save_seconds"),
    ({}, "[policy]\ndrain_seconds = 7", "policy.drain_seconds.*terminationGracePeriodSeconds"),
    ({}, '[[target]]\nprocess = "mine"\nsignal = "SIGUSR1"', "target.*spotwatch.process.*TARGET__0__SIGNAL"),
    ({}, 'target = [{ process = "mine" }]', "target.*spotwatch.process"),
    ({}, '[http]\nlisten = "127.0.0.1:1"', "http.listen.*leave it out"),
    ({}, '[log]\nformat = "console"  # for eyes', "log.format.*spotwatch.logFormat"),
    ({}, 'runtime_dir = "/elsewhere"', "runtime_dir.*leave it out"),
    ({"spotwatch": {"flagOwner": "1:1"}}, '[flag]\nowner = "2:2"', "flag.owner.*spotwatch.flagOwner"),
    (
        {"mailbox": {"url": "s3://a/b", "publicKeys": [_KEY]}},
        '[provider.digitalocean]\nmailbox = "s3://c/d"',
        "provider.digitalocean.mailbox, .*mailbox.url",
    ),
    (
        {
            "webhook": {"enabled": True, "secretFiles": ["/etc/spotwatch/secrets/w"]},
            "spotwatch": {"secretName": "s"},
        },
        '[webhook]\nlisten = ":1"',
        "webhook.listen.*webhook.port",
    ),
]


@pytest.mark.parametrize(("values", "config", "says"), _TAKEN, ids=[says for _, _, says in _TAKEN])
def test_key_that_the_chart_sets_is_refused_in_config(
    helm: Helm, values: dict[str, Any], config: str, says: str
) -> None:
    """Variables win over a file: whoever wrote it there would not be heard."""
    done = helm.template(values | {"spotwatch": {**values.get("spotwatch", {}), "config": config}})
    assert done.returncode != 0, done.stdout
    assert re.search(f"spotwatch.config sets {says}", done.stderr), done.stderr


def test_all_other_keys_of_config_count(helm: Helm, tmp_path: Path) -> None:
    """What is not refused arrives, other than the defaults; comments and long lists mislead nobody."""
    config = """
    # save_seconds = 300
    providers = [
        "aws",  # ours
    ]
    [policy]
    safety_factor = 2.25
    # [http]
    stop_margin_seconds = 21
    [log]
    level = "warning"
    [[announce]]
    url = "https://example.com/#listen=1"
    """
    documents = helm.render({"spotwatch": {"config": config}})
    settings = settings_of(documents, tmp_path)
    assert settings.providers == ("aws",)
    assert (settings.policy.safety_factor, settings.policy.stop_margin_seconds) == (2.25, 21)
    assert settings.log.level == "warning"
    assert settings.announce[0].url == "https://example.com/#listen=1"


def test_values_that_are_not_the_defaults_count(helm: Helm, tmp_path: Path) -> None:
    """Each value that stands for a setting is what the daemon then has."""
    documents = helm.render(
        {
            "cloud": "azure",
            "terminationGracePeriodSeconds": 500,
            "spotwatch": {
                "process": "mine",
                "saveSeconds": 300,
                "logFormat": "console",
                "flagOwner": "1000:2000",
                "env": [{"name": "SPOTWATCH_TARGET__0__SIGNAL", "value": "SIGUSR1"}],
                "config": "[policy]\nsafety_factor = 1.5\n",
            },
        }
    )
    settings = settings_of(documents, tmp_path)
    assert settings.providers == ("azure",)
    assert (settings.policy.save_seconds, settings.policy.drain_seconds) == (300, 500)
    assert [(target.process, target.signal) for target in settings.target] == [("mine", "SIGUSR1")]
    assert (settings.log.format, settings.flag.owner) == ("console", "1000:2000")


def test_variable_that_the_chart_sets_is_refused(helm: Helm) -> None:
    """One name twice is an error of the server's, and which one wins would be by chance."""
    row = {"name": "SPOTWATCH_POLICY__SAVE_SECONDS", "value": "300"}
    done = helm.template({"spotwatch": {"env": [row]}})
    assert done.returncode != 0
    assert "set the value spotwatch.saveSeconds instead" in done.stderr


_POD = 65532


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that the pod's user can look into."""
    with open_folder() as made:
        yield made


# Becomes the pod's user when all is imported, so that the tests' own environment need not be open to it.
_READS_AS_POD = f"""
import os
from pathlib import Path
from spotwatch.cli._options import provider_config
from spotwatch.clock import SystemClock
from spotwatch.config_load import load
from spotwatch.provider_making import make_context
from spotwatch.providers import digitalocean
clock = SystemClock()
os.setgroups([]); os.setgid({_POD}); os.setuid({_POD})
nowhere = Path("/nonexistent/spotwatch.toml")
settings = load(
    path=None, environ=os.environ, flags={{}}, provider_configs=provider_config, default_path=nowhere
).settings
context = make_context(settings, clock, state_dir=None)
print(len(context.webhook_secrets), context.read_secret(
    settings.provider["digitalocean"].mailbox_credentials_file
))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to hand out files as the kubelet does")
def test_secret_of_the_chart_is_read_by_the_user_of_the_pod(helm: Helm, folder: Path) -> None:
    """The mode and group that the pod asks for, as the kubelet gives them: each secret is loaded."""
    documents = helm.render(
        {
            "cloud": "digitalocean",
            "spotwatch": {"secretName": "spotwatch", "logFormat": "auto"},
            "webhook": {"enabled": True, "secretFiles": ["/etc/spotwatch/secrets/webhook"]},
            "mailbox": {
                "url": "s3://mail/prod",
                "publicKeys": [_KEY],
                "credentialsFile": "/etc/spotwatch/secrets/mailbox.env",
            },
        }
    )
    pod = pod_of(documents)
    (secret,) = [v["secret"] for v in pod["volumes"] if v["name"] == "spotwatch-secrets"]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (_POD, _POD)
    texts = {"webhook": "whsec_" + "A" * 43 + "=", "mailbox.env": "AWS_ACCESS_KEY_ID=a"}
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        os.chown(path, 0, pod["securityContext"]["fsGroup"])
        path.chmod(secret["defaultMode"] | 0o440)  # with fsGroup, never less
    variables = {
        name: value.replace("/etc/spotwatch/secrets", str(folder))
        for name, value in environment(daemon_in(pod)).items()
    }
    done = subprocess.run(
        [sys.executable, "-c", _READS_AS_POD],
        cwd=Path(spotwatch.__file__).parents[1],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 AWS_ACCESS_KEY_ID=a\n"
