"""The words of every part of the room: messages, settings, outcomes, credit, errors, and the ports between parts."""
