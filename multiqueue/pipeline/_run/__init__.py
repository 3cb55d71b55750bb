"""The run: the runner, what it gives to threads, and what their ends mean."""
