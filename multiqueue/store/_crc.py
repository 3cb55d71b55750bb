"""The check sum of `zlib.crc32`, in a third of its time where `_crc32.c` was built and the processor can."""

try:
    from ._crc32 import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32
