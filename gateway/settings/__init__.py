"""The settings by subject; `gateway.config` combines them."""
