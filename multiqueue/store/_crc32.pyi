from zlib import crc32 as crc32
