"""`make bench-spark`: measures the speed of the jobs on multiplied recordings of real clients.

docs/replay-speed.md has the figures and explains them.
"""
