"""Reads recorded traffic into tables, describes it, replays it, and compares the answers of a replay.

`tidegate ingest|profile|replay|compare|verify|report`; docs/replay.md says how they work together.
Plain functions read the bytes and make the decisions; the Spark jobs around them are thin. Needs the
extra `spark`.
"""
