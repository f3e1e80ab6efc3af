"""A small Slurm cluster on this machine: Debian's own, two nodes, in a folder of its own.

`python -m tests.services.slurm_cluster` starts one and keeps it until Ctrl-C, for trying things out
by hand. munged, slurmctld and two slurmd run as root with sockets, ports and state in the folder;
nothing of the machine's own configuration is read or changed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from .same import Launched, Place

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
INSTALL = "apt-get install --no-install-recommends slurm-wlm munge"
NODES = ("one", "two")
START_SECONDS = 90
CONF = """
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,preempt_youngest_first
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
MessageTimeout=60
SlurmdTimeout=300
KillWait=30
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=low Nodes=one,two Default=YES PriorityTier=1 GraceTime=120 MaxTime=INFINITE
PartitionName=high Nodes=one,two PriorityTier=2 PreemptMode=OFF
"""


def missing() -> str:
    """Why there can be no cluster here; empty: there can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {absent[0]} here: {INSTALL}"
    return "" if os.geteuid() == 0 else "slurmd must be started by root"


class SlurmCluster:
    """Context in which `environment` leads Slurm's programs to the cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._stack = ExitStack()

    def __enter__(self) -> SlurmCluster:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "slurm.conf").write_text(self.configuration())
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        try:
            self.start_munge(key)
            self.start("slurmctld", "-D", "-i")
            for node in NODES:
                self.start("slurmd", "-D", "-N", node)
            self.wait("both nodes", lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exit: object) -> None:
        self._stack.close()

    def configuration(self) -> str:
        with ExitStack() as stack:
            taken = [stack.enter_context(closing(socket.create_server(("", 0)))) for _ in range(3)]
            ports = [one.getsockname()[1] for one in taken]
        host = socket.gethostname().partition(".")[0]
        return CONF.format(folder=self.folder, ports=ports, host=host)

    def start_munge(self, key: Path) -> None:
        place = self.folder / "munge.socket"
        words = ["--foreground", "--force", f"--socket={place}", f"--key-file={key}"]
        words += [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self.start("munged", *words)
        self.wait("munge", place.exists)

    def start(self, *words: str) -> None:
        """A process of the cluster, which ends with it."""
        log = self._stack.enter_context((self.folder / f"{words[0]}.out").open("ab"))
        process = subprocess.Popen(
            words, env={**os.environ, **self.environment}, stdout=log, stderr=log
        )

        def end() -> None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._stack.callback(end)

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True
        )
        return done.stdout.strip()

    def wait(self, what: str, came_true) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not came_true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come up; {self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """The last words of each process."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
            for path in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        )


def make_room(place: Place, cluster: SlurmCluster, name: str) -> Launched:
    """A run that another job takes the machines from, to its end."""
    place.pause(0.15)
    job = place.launch("slurm", name, "--nodes", "2", "--partition", "low", "--json")
    job.trains(7)
    place.pause(0)
    other = ("--partition=high", "--nodes=2", "--output=/dev/null", "--wrap", "true")
    cluster.ask("sbatch", *other)
    job.wait()
    return job


def main() -> int:
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, SlurmCluster(Path(folder)):
        print(f"export SLURM_CONF={folder}/slurm.conf  # Ctrl-C here ends the cluster", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
