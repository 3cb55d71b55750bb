"""The examples for schedulers: they run the command, and try again where its status says that this helps."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from multiqueue.pipeline import parse_config

HOUSE = Path(__file__).parents[2]
NO_RETRY = {1, 2}
RETRY = {3, 130, 137}

DOCUMENT = {
    "verdict": "done",
    "sentence": "what it said",
    "seconds": 1.5,
    "total": {"done": 3, "failed": 0},
    "tables": [{"table": "s3://lake/out/data", "version": 7}],
}


class Final(Exception):
    """Stands for a failure that a scheduler does not try again."""


class Passing(Exception):
    """Stands for one that it does."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for `multiqueue`: notes its arguments, says the document and ends with the status in `status`."""
    program = tmp_path / "multiqueue"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\ncat {tmp_path}/document\nexit $(cat {tmp_path}/status)\n'
    )
    program.chmod(0o755)
    (tmp_path / "document").write_text(json.dumps(DOCUMENT))
    (tmp_path / "status").write_text("0")
    monkeypatch.setenv("MULTIQUEUE", str(program))
    monkeypatch.setenv("PIPELINE", str(HOUSE / "examples" / "pipeline" / "pipeline.toml"))
    return tmp_path


def example(name: str, monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> Any:
    """The example, imported where these modules stand for the scheduler's."""
    for module, names in modules.items():
        stand_in = ModuleType(module)
        vars(stand_in).update(names)
        monkeypatch.setitem(sys.modules, module.replace("__", "."), stand_in)
    spec = importlib.util.spec_from_file_location(name, HOUSE / "examples" / "schedulers" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def kind_of_end(command: Path, status: int, run: Any) -> type[BaseException] | None:
    (command / "status").write_text(str(status))
    try:
        run()
    except (Final, Passing) as error:
        return type(error)
    return None


# Airflow


class Operator:
    """Stands for Airflow's."""

    made: list[Operator]

    def __init__(self, *, task_id: str, trigger_rule: str = "all_success") -> None:
        self.task_id = task_id
        self.made.append(self)

    def __rrshift__(self, others: list[Operator]) -> None:
        assert [one.task_id for one in others] == ["lane.customers"]


class Dag:
    """Stands for Airflow's."""

    def __init__(self, dag_id: str, **settings: Any) -> None:
        assert settings["max_active_tasks"] == settings["max_active_runs"] == 1
        assert settings["default_args"]["retries"] > 0

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def test_airflow(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task for each section, one for all; statuses 1 and 2 fail it for good, others have it retried."""
    Operator.made = []
    example(
        "airflow_dag",
        monkeypatch,
        airflow={},
        airflow__sdk={"DAG": Dag, "BaseOperator": Operator},
        airflow__sdk__exceptions={"AirflowException": Passing, "AirflowFailException": Final},
    )
    lane, whole = Operator.made
    tried: Any = lane
    assert tried.execute({})["total"] == {"done": 3, "failed": 0}
    ends = {status: kind_of_end(command, status, lambda: tried.execute({})) for status in NO_RETRY | RETRY}
    assert ends == dict.fromkeys(NO_RETRY, Final) | dict.fromkeys(RETRY, Passing)
    (command / "status").write_text("0")
    whole.execute({})  # type: ignore[attr-defined]
    file = HOUSE / "examples" / "pipeline" / "pipeline.toml"
    called = (command / "called").read_text().splitlines()
    assert called[0] == f"pipeline run {file} --json --grace 30 --lane customers"
    assert called[-1] == f"pipeline run {file} --json --grace 30"


# Dagster


class Failure(Final):
    """Stands for Dagster's."""

    def __init__(self, description: str, *, allow_retries: bool) -> None:
        assert not allow_retries


class RetryRequested(Passing):
    """Stands for Dagster's."""

    def __init__(self, *, max_retries: int, seconds_to_wait: int) -> None:
        assert max_retries > 0


def test_dagster(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An asset with the counts and the tables' versions; statuses 1 and 2 fail it for good, others have it retried."""
    result: Any = lambda metadata: SimpleNamespace(metadata=metadata)  # noqa: E731
    names = {"asset": lambda made: made, "MaterializeResult": result}
    names |= {"Failure": Failure, "RetryRequested": RetryRequested}
    made = example("dagster_assets", monkeypatch, dagster=names)
    assert made.customers().metadata == {"done": 3, "failed": 0, "seconds": 1.5, "s3://lake/out/data": "7"}
    ends = {status: kind_of_end(command, status, made.customers) for status in NO_RETRY | RETRY}
    assert ends == dict.fromkeys(NO_RETRY, Failure) | dict.fromkeys(RETRY, RetryRequested)


# Kubernetes


@pytest.fixture
def manifests() -> dict[str, Any]:
    text = (HOUSE / "deploy" / "pipeline" / "job.yaml").read_text()
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_the_manifest_is_one_of_kubernetes(manifests: dict[str, Any], need_module: Callable[[str, str], None]) -> None:
    """Each part of the manifest is as Kubernetes' schemas say, with no key that they have not."""
    need_module("kubernetes_validate", "kubernetes-validate is not installed: pip install 'blocking-multiqueue[test]'")
    import kubernetes_validate as kubernetes

    for one in manifests.values():
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)


def test_the_job_fails_where_another_pod_would_not_help(manifests: dict[str, Any]) -> None:
    """Statuses 1 and 2 fail the Job at once, an eviction does not count, others are tried again within the grace."""
    spec = manifests["Job"]["spec"]
    rules = {rule["action"]: rule for rule in spec["podFailurePolicy"]["rules"]}
    assert set(rules["FailJob"]["onExitCodes"]["values"]) == NO_RETRY
    assert rules["Ignore"]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert set(rules["Count"]["onExitCodes"]["values"]) == {0, *NO_RETRY}
    pod = spec["template"]["spec"]
    (driver,) = pod["containers"]
    arguments = driver["args"]
    assert pod["terminationGracePeriodSeconds"] >= float(arguments[arguments.index("--grace") + 1]) + 10


def test_the_configuration_of_the_job(
    manifests: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ConfigMap is a valid configuration, which keeps nothing on the pod's disk and has no secret in it."""
    for name in ("STATE_PASSWORD", "LAKE_KEY", "LAKE_SECRET"):
        monkeypatch.setenv(name, f"the {name}")
    text = manifests["ConfigMap"]["data"]["pipeline.toml"]
    config = parse_config(tomllib.loads(text), tmp_path)
    assert config.rows_at.text == "s3://lake/customers"
    assert config.dead_letters.text == "s3://lake/dead/customers"
    assert str(config.state) == "postgresql://pipeline@postgresql:5432/pipelines (schema customers)"
    assert all(f"${{{name}}}" in text for name in ("STATE_PASSWORD", "LAKE_KEY", "LAKE_SECRET"))
