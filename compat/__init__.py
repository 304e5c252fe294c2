"""Downloads real RocketMQ clients and a real broker, drives them and compares the broker with the gateway."""
