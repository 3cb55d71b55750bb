"""Run a pipeline from Airflow 3: a task for each section of lanes, and one for the rest and the steps.

A task's result is the run's document. Airflow retries a task if the exit status says that this helps.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

PIPELINE = Path(os.environ.get("PIPELINE", Path(__file__).parents[1] / "pipeline" / "pipeline.toml"))
MULTIQUEUE = os.environ.get("MULTIQUEUE", "multiqueue")


class RunPipeline(BaseOperator):
    """`multiqueue pipeline run FILE --json`, of some lanes or of all."""

    def __init__(self, *, file: str, lanes: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(**settings)
        self.file = file
        self.lanes = lanes

    def execute(self, context: Any) -> dict[str, Any]:
        command = [MULTIQUEUE, "pipeline", "run", self.file, "--json", "--grace", "30"]
        for lane in self.lanes:
            command += ["--lane", lane]
        # Progress goes to standard error, and so into the task's log.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said, _ = self.process.communicate()
        if self.process.returncode in (1, 2):  # the next try would end the same way
            raise AirflowFailException(json.loads(said)["sentence"] if said else "see the log")
        if self.process.returncode != 0:
            raise AirflowException(f"ended with {self.process.returncode}; the same command goes on")
        result: dict[str, Any] = json.loads(said)
        return result

    def on_kill(self) -> None:
        self.process.terminate()


# One run at a time has the state of a pipeline: `max_active_tasks` has the tasks wait for each other.
with DAG(
    "customers",
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    max_active_tasks=1,
    default_args={"retries": 5, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
):
    sections = tomllib.loads(PIPELINE.read_text())["lanes"]
    lanes = [RunPipeline(task_id=f"lane.{name}", file=str(PIPELINE), lanes=(name,)) for name in sections]
    lanes >> RunPipeline(task_id="all", file=str(PIPELINE), trigger_rule="all_done")
