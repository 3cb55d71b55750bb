"""The frame path under a coverage-guided fuzzer.

    python tests/amqp/amqp_fuzz_program.py CORPUS -max_total_time=600 -max_len=600

needs atheris, takes libFuzzer's options, and keeps what it learns in the directory CORPUS. An input that breaks a
promise ends the run and is left in a file `crash-...`; give that file in the place of CORPUS to see it again.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Fuzz until libFuzzer has had enough."""
    try:
        atheris: Any = import_module("atheris")
    except ImportError:
        sys.exit("atheris is not installed: python -m pip install atheris")
    sys.path[:0] = [str(Path(__file__).parents[at]) for at in (2, 1, 0)]
    with atheris.instrument_imports(include=["multiqueue.amqp"]):
        from amqp_fuzz_support import Target, seeds

    for directory in filter(Path.is_dir, map(Path, sys.argv[1:])):
        for name, data in seeds().items():
            (directory / name).write_bytes(data)
    target = Target()
    atheris.Setup(sys.argv, target.take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
