"""Records what clients and servers say to each other, as files that `tidegate ingest` reads.

`format` says what a capture file is, `writer` writes and rotates them without making anybody wait,
`proxy` stands between clients and servers; the gateway's tap uses the writer. Knows the wire alone.
"""
