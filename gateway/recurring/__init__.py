"""Recurring messages (docs/recurring.md): when they fire, how clients set them, how they are stored."""
