"""`python -m compat.bench.echo PORT`: connects to a loopback port and sends back all data."""

import socket
import sys

SIZE = 64
"""The size of each message in bytes."""


def main(port: int) -> None:
    """Send back data until the other side closes the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(SIZE):
            connection.sendall(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
