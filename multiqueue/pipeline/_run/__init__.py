"""The run: the runner, the work of its threads, and what their ends mean."""
