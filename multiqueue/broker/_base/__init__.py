"""What every part of the room may know: messages, settings, outcomes, credit, errors, and the ports between parts."""
