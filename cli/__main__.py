"""`python -m megengine.cli`."""

from megengine.cli import main

if __name__ == "__main__":
    main()
