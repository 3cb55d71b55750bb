"""Many DataFrames read at once."""
