"""The output that a configuration describes: directories of files, or tables of a kind."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.place import Place, quoted
from .._columns.kinds import ADD, REFUSE
from .._config.config import PipelineConfig
from .files import TableFiles
from .output import Output
from .publish import Publisher
from .table import Table, TableFormat
from .table_output import TableOutput


def output_of(config: PipelineConfig) -> Output:
    """The output of the configuration; nothing is looked at yet.

    Raises:
        Unprepared: the library of its tables is not installed.
    """
    section = config.settings.output
    if section.table is None:
        return Publisher(config.output)
    tables = {"": _table(config, "data", section.name, section.partition_by)}
    for name, step in config.settings.steps.items():
        tables[name] = _table(config, f"steps/{quoted(name)}", f"{section.name}_{name}", step.partition_by)
    return TableOutput(config.output, f"{section.table} tables", tables)


def _table(config: PipelineConfig, path: str, name: str, partition_by: Sequence[str]) -> Table:
    adds = any(lane.new_columns == ADD for lane in config.settings.lanes.values())
    rule = config.settings.output.on_other_columns or (ADD if adds else REFUSE)
    root = Place(f"{config.rows_at.text}/{path}")
    return Table(_format(config, TableFiles(root, config.storage), name), partition_by, rule, root.text)


def _format(config: PipelineConfig, files: TableFiles, name: str) -> TableFormat:
    section = config.settings.output
    if section.table == "delta":  # the libraries of tables are extras, each of its own
        from .delta import DeltaTable

        return DeltaTable(files)
    from .iceberg import IcebergTable

    return IcebergTable(files, name, section.catalog, config.output / "_multiqueue" / "catalog.sqlite")
