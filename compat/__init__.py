"""Real RocketMQ clients and a real broker, got, driven and compared with the gateway."""
