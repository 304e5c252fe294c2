"""Real clients, driven from Python."""
