"""An item's output: directories that one rename publishes, or tables that one commit adds to."""
