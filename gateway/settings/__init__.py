"""The settings by subject; `config.py` combines them, and `loading.py` reads them."""
