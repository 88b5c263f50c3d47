# SPDX-License-Identifier: Apache-2.0
"""Values that are left blank, and names that the chart gives as well: words, never half a pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import CHART, Helm, containers, environment, make_helm, pod_of, trainer_in

pytestmark = pytest.mark.timeout(120)

_VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Give the real helm."""
    return make_helm(tmp_path)


def _paths(*, empty: bool) -> list[tuple[str, ...]]:
    """Return each value and section, by whether its default is empty."""
    pairs: list[tuple[tuple[str, ...], Any]] = [((name,), value) for name, value in _VALUES.items()]
    for name, value in _VALUES.items():
        if isinstance(value, dict):
            pairs += [((name, key), within) for key, within in value.items()]
    return [path for path, value in pairs if (value in (None, "", [], {})) == empty]


def _blank(path: tuple[str, ...]) -> Any:
    values: Any = None
    for name in reversed(path):
        values = {name: values}
    return values


@pytest.mark.parametrize("path", _paths(empty=False), ids=".".join)
def test_blank_value_is_named(helm: Helm, path: tuple[str, ...]) -> None:
    """`sidecar:` with nothing behind it is no choice: the chart says what is missing and renders nothing."""
    done = helm.template(_blank(path))
    assert done.returncode != 0, done.stdout
    assert f"missing property '{path[-1]}'" in done.stderr, done.stderr


def test_blank_is_what_is_blank_by_default(helm: Helm) -> None:
    """Null where the default is empty changes nothing, all of them at once."""
    values: dict[str, Any] = {}
    for first, *rest in _paths(empty=True):
        values.setdefault(first, {})
        if rest:
            values[first][rest[0]] = None
        else:
            values[first] = None
    assert helm.render(values) == helm.render({})


_ENV = {"value": "mine"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"trainer": {"env": [{"name": "SPOTWATCH_RUN_ID", **_ENV}]}},
            "trainer: SPOTWATCH_RUN_ID is set twice",
        ),
        (
            {"trainer": {"env": [{"name": "SPOTWATCH_RUNTIME_DIR", **_ENV}]}},
            "SPOTWATCH_RUNTIME_DIR is set twice",
        ),
        ({"trainer": {"env": [{"name": "A", **_ENV}, {"name": "A", **_ENV}]}}, "trainer: A is set twice"),
        (
            {"sidecar": "exec", "trainer": {"env": [{"name": "SPOTWATCH_POLICY__SAVE_SECONDS", **_ENV}]}},
            "SPOTWATCH_POLICY__SAVE_SECONDS is set twice",
        ),
        ({"sidecar": "exec", "spotwatch": {"env": [{"name": "HOME", **_ENV}]}}, "HOME is set twice"),
        (
            {"spotwatch": {"env": [{"name": "SPOTWATCH_POD__SIDECAR", **_ENV}]}},
            "SPOTWATCH_POD__SIDECAR, which the chart sets as well: leave it out",
        ),
        ({"spotwatch": {"config": '[pod]\nsidecar = "plain"'}}, "pod.sidecar, which the chart sets as well"),
        (
            {"spotwatch": {"config": 'provider = { digitalocean = { mailbox = "s3://a/b" } }'}},
            "a table in a table on one line",
        ),
        (
            {"pod": {"labels": {"app.kubernetes.io/name": "mine"}}},
            "pod.labels: app.kubernetes.io/name is the chart's",
        ),
        (
            {"pod": {"labels": {"app.kubernetes.io/instance": "mine"}}},
            "is the chart's, which finds its pods by it",
        ),
        ({"pod": {"volumes": [{"name": "tmp", "emptyDir": {}}]}}, "the chart has a volume"),
        ({"trainer": {"volumeMounts": [{"name": "data", "mountPath": "/tmp/"}]}}, "mounted at /tmp"),
        ({"pod": {"shmSize": "8 GB"}}, "/pod/shmSize"),
        ({"spotwatch": {"flagOwner": "99999999999:1"}}, "/spotwatch/flagOwner"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_name_that_the_chart_gives_is_refused(helm: Helm, values: dict[str, Any], says: str) -> None:
    """Which of two would count, or whether any, would be the server's to say."""
    done = helm.template(values)
    assert done.returncode != 0, done.stdout
    assert says in done.stderr, done.stderr


def test_what_the_chart_leaves_to_the_user_counts_once(helm: Helm) -> None:
    """A home of the trainer's, what is watched by variable, a target by configuration, a tab in that."""
    documents = helm.render(
        {
            "trainer": {"env": [{"name": "HOME", "value": "/home/me"}]},
            "spotwatch": {
                "process": "",
                "env": [{"name": "SPOTWATCH_PROVIDERS", "value": "aws,file"}],
                "config": '[[target]]\n\tprocess = "mine"\n',
            },
            "pod": {"shmSize": "1.5Gi", "labels": {"team": "a"}},
        }
    )
    pod = pod_of(documents)
    for container in containers(pod):
        names = [row["name"] for row in container["env"]]
        assert len(names) == len(set(names)), names
    assert environment(trainer_in(pod))["HOME"] == "/home/me"
    (config,) = [d for d in documents if d["kind"] == "ConfigMap"]
    assert config["data"] == {"spotwatch.toml": '[[target]]\n\tprocess = "mine"\n'}
