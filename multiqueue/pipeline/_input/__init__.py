"""From files and broker queues into the state."""
