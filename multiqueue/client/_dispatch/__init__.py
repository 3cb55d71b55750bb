"""The places where threads meet: the work pool, the reader's brake, the bytes to be written, the program's end."""
