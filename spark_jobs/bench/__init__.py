"""`make bench-spark`: measures the speed of the jobs on multiplied recordings of real clients.

docs/replay.md has the figures and explains them.
"""
