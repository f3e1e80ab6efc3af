"""Two hosts with an ssh server each: network namespaces of this machine, joined by a cable."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from stepladder.errors import WorldError
from stepladder.measure import SlowLink

INSTALL = "apt-get install --no-install-recommends openssh-server"
START_SECONDS = 30
CONF = """
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/me.pub
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
SetEnv OMP_NUM_THREADS=1 MPLBACKEND=agg
"""


def missing() -> str:
    """Why there can be no two hosts here; empty: there can."""
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None:
        return f"no sshd here: {INSTALL}"
    try:
        with SlowLink(None):
            return ""
    except WorldError as refused:
        return str(refused)


class TwoHosts:
    """Context in which `ssh` reaches both addresses from the first host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cable = SlowLink(None)
        self._stack = ExitStack()

    @property
    def ssh(self) -> str:
        """The command that reaches them, for `launch --ssh`."""
        known = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={self.folder}/known"
        return f"ssh -i {self.folder}/me -o LogLevel=ERROR {known}"

    @property
    def words(self) -> list[str]:
        return ["--hosts", ",".join(self.cable.addresses), "--ssh", self.ssh]

    @property
    def before(self) -> list[str]:
        """Words that start a program on the first host."""
        return self.cable.inside(0)

    def __enter__(self) -> TwoHosts:
        Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives
        for name in ("host", "me"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True)
        conf = self.folder / "sshd.conf"
        conf.write_text(CONF.format(folder=self.folder))
        try:
            self._stack.enter_context(self.cable)
            for end in range(2):
                self.serve(end, conf)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exit: object) -> None:
        self._stack.close()

    def serve(self, end: int, conf: Path) -> None:
        log = self._stack.enter_context((self.folder / f"sshd-{end}.log").open("ab"))
        server = subprocess.Popen(
            [*self.cable.inside(end), "/usr/sbin/sshd", "-D", "-e", "-f", str(conf)], stderr=log
        )
        self._stack.callback(server.wait)
        self._stack.callback(server.terminate)
        question = [*self.before, *self.ssh.split(), self.cable.addresses[end], "true"]
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(question, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no sshd: {Path(log.name).read_text()}")
            time.sleep(0.2)
