"""One rank of a command that was started on several: `python -m stepladder.cli.rank train …`."""

from __future__ import annotations

import os
import sys

from stepladder.errors import LostRank, RankOutOfMemory, StepladderError

from .import_torch import loading
from .main import FAILED_CHECK, INTERRUPTED, USER_MISTAKE, answer


def main() -> int:
    """Run the command; a failure is left for the launcher to tell, which hears every rank's."""
    with loading():
        from stepladder.launch.local.rank_process import begin_rank, record_failure

    begin_rank()
    try:
        return answer(sys.argv[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        record_failure(error)
        mistake = isinstance(error, StepladderError) and not isinstance(
            error, LostRank | RankOutOfMemory
        )
        # At once: a save in the background may wait long for the part of a rank that is gone.
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(USER_MISTAKE if mistake else FAILED_CHECK)


if __name__ == "__main__":
    raise SystemExit(main())
