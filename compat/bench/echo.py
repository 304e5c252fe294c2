"""`python -m compat.bench.echo PORT`: connects to a loopback port and sends back what it is sent."""

import socket
import sys

SIZE = 64
"""Bytes of each message."""


def main(port: int) -> None:
    """Returns when the other side closes."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(SIZE):
            connection.sendall(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
