"""Commands as a user without rights: `python -m tests.chaos.permissions FILE`.

The file holds lists of words, one a line. Each command is run in this one process; what it ended
with and said is one line of JSON.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from stepladder.cli.main import main


def answer(words: list[str]) -> dict[str, object]:
    """How a command ended, and its lines on standard error; 99: with a traceback."""
    told = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(told):
        try:
            code = main(words)
        except BaseException:
            code = 99
            traceback.print_exc()
    return {"code": code, "lines": told.getvalue().splitlines()}


if __name__ == "__main__":
    for line in Path(sys.argv[1]).read_text().splitlines():
        print(json.dumps(answer(json.loads(line))), flush=True)
