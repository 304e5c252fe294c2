"""The settings by subject; `gateway.config` makes them one."""
