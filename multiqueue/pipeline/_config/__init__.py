"""The configuration: its sections, its graph of steps, and the files that its globs match."""
