"""THE MAIN JOB: files and messages in lanes, through Spark, into an output in which each item appears whole and once.

Promises: finished items survive Ctrl-C and kill -9, and the same command finishes the rest; a failing item is set
aside and the run goes on; memory does not grow with the number of files.
Knows the core and the rooms spark and client. docs/design/pipeline.md has the promises and the states.
"""

try:
    import pydantic as _pydantic  # noqa: F401
    import rich as _rich  # noqa: F401 - asked for here so that their absence is said in one sentence
except ImportError as _error:
    raise ImportError(f"multiqueue.pipeline needs {_error.name}: pip install 'blocking-multiqueue[cli]'") from None

from .._logs import one_line_each as _one_line_each
from ._base.errors import ConfigError as ConfigError
from ._base.errors import ExitStatus as ExitStatus
from ._base.errors import JobError as JobError
from ._base.errors import PipelineError as PipelineError
from ._base.errors import SessionLost as SessionLost
from ._base.errors import StateDamaged as StateDamaged
from ._base.errors import StateInUse as StateInUse
from ._base.errors import StateMismatch as StateMismatch
from ._base.errors import Unprepared as Unprepared
from ._base.errors import Unreachable as Unreachable
from ._base.items import FileSeen as FileSeen
from ._base.items import Item as Item
from ._base.items import Payload as Payload
from ._config.config import PipelineConfig as PipelineConfig
from ._config.config import load_config as load_config
from ._config.config import parse_config as parse_config
from ._run.progress import AttemptEnded as AttemptEnded
from ._run.progress import Reporter as Reporter
from ._run.progress import Silent as Silent
from ._run.tally import LaneProgress as LaneProgress
from ._run.tally import Snapshot as Snapshot
from ._tell.metrics import MetricsFile as MetricsFile
from ._verbs.plan import LanePlan as LanePlan
from ._verbs.plan import Plan as Plan
from ._verbs.plan import StepPlan as StepPlan
from ._verbs.plan import plan_of as plan_of
from ._verbs.run import RunResult as RunResult
from ._verbs.run import run_pipeline as run_pipeline

_one_line_each("multiqueue.pipeline")

__all__ = [name for name in dir() if name[0].isalpha()]
