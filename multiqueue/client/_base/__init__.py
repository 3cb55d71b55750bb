"""All that every other part of the client may know: errors, settings, states, addresses, messages."""
