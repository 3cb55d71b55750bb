"""The check sum of the store is zlib's."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from store_parts_support import crc32


@pytest.mark.parametrize("size", [*range(200), 4096, 65_537, (1 << 18) + 1])
def test_it_is_zlibs_for_every_size_and_start(size: int) -> None:
    """Bytes of any length and place in memory, with any value to begin from, have the check sum that zlib finds."""
    chance = Random(size)
    for at in (0, 1):
        data = memoryview(chance.randbytes(size + at))[at:]
        for value in (0, 1, 0xFFFFFFFF, chance.getrandbits(32)):
            assert crc32(data, value) == zlib.crc32(data, value)
        assert crc32(data) == zlib.crc32(data)
    with pytest.raises(TypeError):
        crc32("text")  # type: ignore[arg-type]
