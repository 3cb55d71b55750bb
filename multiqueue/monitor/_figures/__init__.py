"""What the broker, this process and its executors are like at one moment, and were before."""
