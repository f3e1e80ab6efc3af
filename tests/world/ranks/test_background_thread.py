"""A thread that is in a call of torch's when the main one ends does not take the process along."""

import subprocess
import sys

SCRIPT = """
import time, torch.distributed as dist
from stepladder.world.ranks.background_thread import start_background_thread
home = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store = dist.TCPStore("127.0.0.1", home.port, is_master=False)
asked = []

def ask(done):
    while not done.is_set():
        store.set("a", "b")
        asked.append(store.get("a"))

start_background_thread(ask, "asking")
while len(asked) < 100:
    time.sleep(0.01)
raise SystemExit(3)
"""


def test_a_process_ends_with_its_own_code_whatever_its_thread_is_in():
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 3, ran.stderr  # -6: "terminate called without an active exception"
