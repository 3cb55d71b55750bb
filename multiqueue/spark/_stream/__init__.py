"""`format("multiqueue")`: broker queues as a source and a sink of Spark."""
