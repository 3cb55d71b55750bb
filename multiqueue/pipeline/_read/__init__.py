"""The rows of an item's files, by Spark's readers or by the executors' Python."""
