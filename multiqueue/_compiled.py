"""What is said of an extension that was built from an older source, and lacks some of what it is asked for.

An editable install keeps one when its checkout moves on. It is passed over: what is in Python runs instead.
"""

from __future__ import annotations

import warnings
from types import ModuleType


def warn_of_older(extension: ModuleType, missing: list[str]) -> None:
    """Warn of it, and say how to build it again. For modules that are being imported: the place is not the reader's."""
    where = getattr(extension, "__file__", extension.__name__)
    warnings.warn(
        f"{where} was built from an older source and has no {', '.join(missing)}; what is in Python runs instead. "
        "To build it again: pip install --force-reinstall --no-deps blocking-multiqueue, or "
        "pip install -e . in a checkout",
        RuntimeWarning,
        stacklevel=2,
    )
