"""SQL-92 conditions on messages: tokens, grammar, operations."""
