"""What a user asks of a pipeline: run, plan, vacuum, optimize."""
