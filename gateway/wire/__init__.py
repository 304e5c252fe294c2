"""The RocketMQ remoting protocol as pure functions between bytes and values. They use no socket and no clock.

`frames` cuts a stream of bytes into frames, and `commands` reads and writes their headers. `headers` has the fields of
each request, `messages` and `properties` the layout of a message, and `bodies` the JSON bodies.
"""
