"""One broker queue: its entries, its consumers, its limits, under one lock. Knows `_base` and `_selector/selector`."""
