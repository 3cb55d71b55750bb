"""All that every other part of the client may know: errors, settings, addresses, messages."""
