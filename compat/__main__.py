"""`python -m compat`."""

from compat.command import compat

if __name__ == "__main__":
    compat.main(prog_name="tidegate compat")
