"""`python -m tests.torture`."""

from tests.torture.command import main

if __name__ == "__main__":
    main()
