"""The first minute: demonstrations that need nothing but the command line's extra, or the broker's, or Spark's.

Promises that each ends by itself, in ten seconds without Spark, and leaves nothing behind but what it says. It knows
`core`, `client` and the pipeline's own demonstration; the command line alone knows it.
"""
