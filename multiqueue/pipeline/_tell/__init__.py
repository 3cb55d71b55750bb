"""What people and machines see of a run: terminal, JSON, metrics, report."""
