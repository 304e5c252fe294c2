"""The RocketMQ remoting protocol as pure functions: bytes in, values out. No socket, no clock.

Built from the bottom: `frames` cuts a stream of bytes, `commands` reads and writes their headers,
`headers` has the fields of each request, `messages` and `properties` what a message looks like,
`bodies` the JSON bodies.
"""
