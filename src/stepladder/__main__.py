"""`python -m stepladder`, for environments whose scripts are not on the path."""

from stepladder.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
