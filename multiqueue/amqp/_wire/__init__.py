"""Frames, fields, properties and methods as bytes, and messages that stay bytes. No state but of one splitter."""
