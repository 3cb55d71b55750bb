"""THE MAIN JOB: files and messages in lanes, through Spark, into an output in which each item appears whole and once.

Promises: what is done survives Ctrl-C and kill -9, and the same command finishes the rest; a failing item is set
aside and the run goes on; memory does not grow with the number of files.
Knows the core and the rooms spark and client. docs/design/pipeline.md has the promises and the states.
"""

try:
    import pydantic as _pydantic  # noqa: F401
    import rich as _rich  # noqa: F401 - asked for here so that their absence is said in one sentence
except ImportError as _error:
    raise ImportError(f"multiqueue.pipeline needs {_error.name}: pip install 'blocking-multiqueue[cli]'") from None

from ._config import PipelineConfig as PipelineConfig
from ._config import load_config as load_config
from ._config import parse_config as parse_config
from ._errors import ConfigError as ConfigError
from ._errors import ExitStatus as ExitStatus
from ._errors import JobError as JobError
from ._errors import PipelineError as PipelineError
from ._errors import SessionLost as SessionLost
from ._errors import StateDamaged as StateDamaged
from ._errors import StateInUse as StateInUse
from ._errors import StateMismatch as StateMismatch
from ._errors import Unprepared as Unprepared
from ._errors import Unreachable as Unreachable
from ._items import FileSeen as FileSeen
from ._items import Item as Item
from ._items import Payload as Payload
from ._metrics import MetricsFile as MetricsFile
from ._plan import LanePlan as LanePlan
from ._plan import Plan as Plan
from ._plan import StepPlan as StepPlan
from ._plan import plan_of as plan_of
from ._progress import AttemptEnded as AttemptEnded
from ._progress import Reporter as Reporter
from ._progress import Silent as Silent
from ._run import RunResult as RunResult
from ._run import run_pipeline as run_pipeline
from ._tally import LaneProgress as LaneProgress
from ._tally import Snapshot as Snapshot

__all__ = [
    "AttemptEnded",
    "ConfigError",
    "ExitStatus",
    "FileSeen",
    "Item",
    "JobError",
    "LanePlan",
    "LaneProgress",
    "MetricsFile",
    "Payload",
    "PipelineConfig",
    "PipelineError",
    "Plan",
    "Reporter",
    "RunResult",
    "SessionLost",
    "Silent",
    "Snapshot",
    "StateDamaged",
    "StateInUse",
    "StateMismatch",
    "StepPlan",
    "Unprepared",
    "Unreachable",
    "load_config",
    "parse_config",
    "plan_of",
    "run_pipeline",
]
