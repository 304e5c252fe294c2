"""A gateway that speaks the RocketMQ remoting protocol and keeps messages for later."""
