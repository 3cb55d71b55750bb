"""A plan for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..._words import counted
from .._base.items import INFER, KEEP
from .._base.rate import rate_told, share_s
from .._config.config import PipelineConfig
from .._config.fingerprint import made_by_others
from .._read.ways import planned_way
from .._run.disposal import planned_end
from .plan import LanePlan, Plan, StepPlan

# Of lanes in a sentence.
_MOST_NAMES = 5


def show_plan(console: Console, config: PipelineConfig, plan: Plan) -> None:
    """Print the plan: lanes, steps, and what would come first."""
    section = config.settings.spark
    where = section.remote or section.master or "local[*]"
    items = counted(plan.to_run, "item")
    console.print(f"{items} to run on {where}, {section.max_running} at a time; nothing was started", soft_wrap=True)
    console.print(_lanes(plan))
    for lane in plan.lanes:
        for said in _of_lane(lane):
            console.print(escape(lane.lane.name + said), style="dim", soft_wrap=True)
    if plan.steps:
        console.print(_steps(plan))
    for place, item in enumerate(plan.first, 1):
        console.print(f"{place:>3}. {escape(item.lane)}: {escape(item.name)}", soft_wrap=True)
    hidden = plan.to_run - len(plan.first)
    if plan.first and hidden > 0:
        console.print(f"     and {hidden:,} more")
    others = made_by_others(plan.made_by_others, config.source)
    if others is not None:
        console.print(escape(others), style="yellow", soft_wrap=True)
    if plan.unread:
        which = ", ".join(plan.unread[:_MOST_NAMES]) + (" and others" if len(plan.unread) > _MOST_NAMES else "")
        said = f"not listed to the end: {which}; the counts are of what was listed, and --whole lists everything"
        console.print(escape(said), style="yellow", soft_wrap=True)
    for sentence in plan.passed_over:
        console.print(escape(sentence), style="dim", soft_wrap=True)
    for sentence in plan.lost:
        console.print(escape(sentence), style="red", soft_wrap=True)


def _of_lane(plan: LanePlan) -> Iterator[str]:
    """What follows the lane's name in sentences below the table."""
    lane = plan.lane
    if lane.schema == INFER:
        yield f" has the columns {plan.columns}" if plan.columns else " has its columns inferred from its first item"
    if (rate := rate_told(lane)) is not None:
        yield f": {rate}, so {share_s(lane, plan.files, plan.size_bytes):,.0f} s for what is to run"
    if plan.whole is not None:
        yield f": {plan.whole}"
    if lane.after != KEEP:
        yield f": {planned_end(lane)}"
    if lane.events is not None:
        yield " will also take what events tell then; files are listed when it is time"
    elif lane.source is not None:
        yield " will also take what its queue has then: a plan asks no broker"


def plan_values(plan: Plan) -> dict[str, Any]:
    """A plan for JSON."""
    return {
        "to_run": plan.to_run,
        "lanes": {lane.lane.name: _lane_values(lane) for lane in plan.lanes},
        "steps": {step.step.name: _step_values(step) for step in plan.steps},
        "first": [
            {"lane": item.lane, "item": item.id, "files": [one.path for one in item.files]} for item in plan.first
        ],
        "passed_over": plan.passed_over,
        "lost": plan.lost,
        "made_by_others": plan.made_by_others,
        "unread": list(plan.unread),
    }


def _lanes(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("lane")
    table.add_column("by")
    for name in ("priority", "weight", "a job", "to run", "new", "changed", "files", "bytes", "done", "failed"):
        table.add_column(name, justify="right")
    for lane in plan.lanes:
        counts = (lane.to_run, lane.new, lane.changed, lane.files, lane.size_bytes, lane.done, lane.failed)
        by_itself = "auto, " if lane.lane.target_s is not None else ""
        scheduling = (str(lane.lane.priority), str(lane.lane.weight), f"{by_itself}{lane.batch:,}")
        table.add_row(escape(lane.lane.name), planned_way(lane.lane), *scheduling, *(f"{count:,}" for count in counts))
    return table


def _steps(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "runs", ""):
        table.add_column(name)
    for step in plan.steps:
        each = ", for each lane" if step.step.each_lane else ""
        table.add_row(escape(step.step.name), "yes" if step.runs else "no", escape(step.why + each))
    return table


def _lane_values(plan: LanePlan) -> dict[str, Any]:
    return {
        "by": planned_way(plan.lane),
        "priority": plan.lane.priority,
        "weight": plan.lane.weight,
        "batch": "auto" if plan.lane.target_s is not None else plan.batch,
        "files_per_item": plan.batch,
        "columns": plan.columns,
        "after": planned_end(plan.lane),
        "rate": rate_told(plan.lane),
        "one_task": plan.whole,
        "to_run": plan.to_run,
        "new": plan.new,
        "changed": plan.changed,
        "files": plan.files,
        "bytes": plan.size_bytes,
        "done": plan.done,
        "failed": plan.failed,
    }


def _step_values(plan: StepPlan) -> dict[str, Any]:
    return {"after": list(plan.step.after), "each_lane": plan.step.each_lane, "runs": plan.runs, "why": plan.why}
