"""Our claims, measured beside their rivals.

Promises: a rival that loses an item, or hands it out in the wrong order, gets no figure and fails the run;
every figure comes with its spread, its rivals of the same run, the machine, the versions, the commit and the
command. May know every room; no room knows it. Nothing here is an interface for programs but the JSON that
docs/reference/benchmarks.md describes.
"""
