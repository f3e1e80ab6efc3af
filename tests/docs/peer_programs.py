"""Runs a peer's programs, each in its own fork: `python -m tests.docs.peer_programs with_trainer`.

Peers keep state in the process and its environment, so programs share no process; their imports
take seconds, so the forks share those.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .everyday_blocks import code_lines, given, setting_up


def main(peer: str) -> int:
    """Run what needs neither GPUs nor ranks; the number of programs that failed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    source = (code_lines.PEERS / f"{peer}.py").read_text()
    imports = source.partition("\n# %% ")[0]
    exec(compile(imports, peer, "exec"), names)
    failed = 0
    for need, code in code_lines.peer_programs(peer).items():
        if not code.startswith("# needs "):
            failed += run_in_fork(need, [given(), *setting_up(need), imports, code], names)
    return failed


def run_in_fork(need: str, blocks: list[str], names: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(run(need, blocks, names))
    _, status = os.waitpid(child, 0)
    print(f"{need}: {'failed' if status else 'ran'}", flush=True)
    return int(status != 0)


def run(need: str, blocks: list[str], names: dict[str, Any]) -> int:
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for code in blocks:
                exec(compile(code, need, "exec"), names)
        except Exception:
            traceback.print_exc()
            return 1
        finally:
            os.chdir(Path(folder).parent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
