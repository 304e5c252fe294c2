"""Recorded traffic as tables, what it was, and whether a replay of it went differently.

`tidegate ingest|profile|replay|compare|verify|report`; docs/replay.md says how they work together.
What reads bytes or decides anything is plain functions; the jobs over them are thin. Needs the
extra `spark`.
"""
