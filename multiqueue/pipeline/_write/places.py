"""Where in an output what lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._base.items import Item
from .._base.place import quoted


@dataclass(frozen=True, slots=True)
class Places:
    """Where in an output what lies."""

    output: Path

    @property
    def data(self) -> Path:
        return self.output / "data"

    def of_lane(self, lane: str) -> Path:
        return self.data / f"lane={quoted(lane)}"

    def of_step(self, step: str, part: str | None = None) -> Path:
        """The step's directory, or in it that of one lane."""
        root = self.output / "steps" / quoted(step)
        return root / f"lane={quoted(part)}" if part else root

    def of_item(self, item: Item) -> Path:
        parent = self.of_lane(item.lane) if item.part is None else self.of_step(item.lane, item.part)
        return parent / f"item={item.id}"

    @property
    def corrupt(self) -> Path:
        """Records that were set aside."""
        return self.output / "corrupt"

    def corrupt_of(self, item: Item) -> Path:
        """Those of the item."""
        return self.corrupt / f"lane={quoted(item.lane)}" / f"item={item.id}"

    @staticmethod
    def directories(item: Item) -> tuple[str, ...]:
        """The columns that readers find in the names of the directories."""
        return ("item",) if item.part == "" else ("lane", "item")


def beside(staged: Path) -> Path:
    """Where an attempt leaves the records that it sets aside."""
    return staged.with_name(f"{staged.name}-corrupt")
