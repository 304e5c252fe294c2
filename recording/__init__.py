"""Records the traffic between clients and servers in files that `tidegate ingest` reads.

`format` defines capture files, `writer` writes and rotates them without making anybody wait, and `proxy` stands between
clients and servers. The gateway's tap uses the writer. This package only depends on the wire protocol.
"""
