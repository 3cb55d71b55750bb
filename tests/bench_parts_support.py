"""The parts of `multiqueue.bench` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from multiqueue.bench import _amqp as _amqp
from multiqueue.bench import _broker as _broker
from multiqueue.bench import _core_suite as _core_suite
from multiqueue.bench import _pipeline_runs as _pipeline_runs
from multiqueue.bench import _spark as _spark
from multiqueue.bench import _spark_fan_in as _spark_fan_in
from multiqueue.bench import _spark_jobs as _spark_jobs
from multiqueue.bench import _spark_session as _spark_session
from multiqueue.bench import _store as _store
from multiqueue.bench import _store_backlog as _store_backlog
from multiqueue.bench._amqp_load import LOADS as LOADS
from multiqueue.bench._amqp_load import compiled as compiled
from multiqueue.bench._amqp_load import measured_suite as measured_suite
from multiqueue.bench._amqp_load import suite as suite
from multiqueue.bench._amqp_servers import OURS as OURS
from multiqueue.bench._amqp_servers import THEIRS as THEIRS
from multiqueue.bench._amqp_servers import Server as Server
from multiqueue.bench._arrivals import check_arrivals as check_arrivals
from multiqueue.bench._arrivals import check_order as check_order
from multiqueue.bench._arrivals import deal as deal
from multiqueue.bench._contenders import Contender as Contender
from multiqueue.bench._contenders import Ends as Ends
from multiqueue.bench._crew import Crew as Crew
from multiqueue.bench._crew import Elapsed as Elapsed
from multiqueue.bench._harness import run_attempt as run_attempt
from multiqueue.bench._harness import run_suite as run_suite
from multiqueue.bench._harness import run_workload as run_workload
from multiqueue.bench._model import BEST_RIVAL as BEST_RIVAL
from multiqueue.bench._model import BenchError as BenchError
from multiqueue.bench._model import Figures as Figures
from multiqueue.bench._model import Goal as Goal
from multiqueue.bench._model import ItemsLost as ItemsLost
from multiqueue.bench._model import Metric as Metric
from multiqueue.bench._model import Rival as Rival
from multiqueue.bench._model import Stuck as Stuck
from multiqueue.bench._model import Suite as Suite
from multiqueue.bench._model import Workload as Workload
from multiqueue.bench._pipeline import SUITE as _PIPELINES
from multiqueue.bench._spark_fan_in import Reading as Reading
from multiqueue.bench._spark_jobs import Jobs as Jobs
from multiqueue.bench._spark_task_events import Events as Events
from multiqueue.bench._statistics import Summary as Summary
from multiqueue.bench._statistics import paired_ratio as paired_ratio
from multiqueue.bench._statistics import percentile as percentile
from multiqueue.bench._statistics import summarize as summarize
from multiqueue.bench._store import SUITE as SUITE
from multiqueue.bench._table import _cells as _cells
from multiqueue.bench._table import as_markdown as as_markdown
from multiqueue.bench._table import facts as facts
from multiqueue.bench._table import quantity as quantity
from multiqueue.bench._transfer import batches as batches
from multiqueue.bench._transfer import producers_to_consumers as producers_to_consumers
from multiqueue.bench._transfer import put_and_get as put_and_get
from multiqueue.bench._waiting import idling as idling
from multiqueue.bench._waiting import one_of_many as one_of_many
from multiqueue.bench._workarounds import forwarding_threads as forwarding_threads
from multiqueue.bench._workarounds import poll_loop as poll_loop
from multiqueue.bench._workarounds import tag_in_one as tag_in_one

PIPELINES = _PIPELINES
"""The suite of pipelines; `SUITE` is that of the store."""
