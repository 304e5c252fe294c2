"""`make bench-spark`: how fast the jobs are, from recordings of real clients multiplied.

docs/replay.md has the figures and says what they mean.
"""
