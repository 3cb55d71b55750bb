"""The output that a configuration describes: directories of files, or tables of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._config import PipelineConfig
from ._output import Output
from ._publish import Places, Publisher
from ._table import Table, TableFormat
from ._table_columns import REFUSE
from ._table_files import TableFiles
from ._table_output import TableOutput


def output_of(config: PipelineConfig) -> Output:
    """The output of the configuration; nothing is looked at yet.

    Raises:
        Unprepared: the library of its tables is not installed.
    """
    section = config.settings.output
    if section.table is None:
        return Publisher(config.output)
    places = Places(config.output)
    tables = {"": _table(config, places.data, section.partition_by)}
    for name, step in config.settings.steps.items():
        tables[name] = _table(config, places.of_step(name), step.partition_by)
    return TableOutput(config.output, f"{section.table} tables", tables)


def _table(config: PipelineConfig, root: Path, partition_by: Sequence[str]) -> Table:
    rule = config.settings.output.on_other_columns or REFUSE
    return Table(_format(config, root), partition_by, rule, str(root))


def _format(config: PipelineConfig, root: Path) -> TableFormat:
    from ._delta import DeltaTable  # here: the libraries of tables are extras, each of its own

    return DeltaTable(TableFiles(root))
