"""`python -m compat.bench`."""

from compat.bench import main

if __name__ == "__main__":
    main()
