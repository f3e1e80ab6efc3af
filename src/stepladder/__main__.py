"""`python -m stepladder`, for environments whose scripts are not on the path."""

from stepladder.cli.main import main

raise SystemExit(main())
