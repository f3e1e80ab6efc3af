"""A Slurm job followed by what its programs say; tests/services does it on a real cluster."""

import os
import signal
import sys
import threading
import time

import pytest

from stepladder.errors import WorldError
from stepladder.launch import OnSlurm, SlurmChoice
from stepladder.launch.slurm import slurm_job as queue_of
from stepladder.launch.slurm.slurm_job import exit_code, look, read_state, submit
from tests.launch.stand_in_programs import put
from tests.launch.test_run_request import request_of

LINE = (
    "JobId=7 JobName=run UserId=me(1) Priority=1 JobState={state} Reason={why} Dependency=(null) "
    "Requeue=1 Restarts={again} BatchFlag=1 ExitCode={code} Command=/a b=c NodeList=n1"
)


def line(state, why="None", again=0, code="0:0"):
    return LINE.format(state=state, why=why, again=again, code=code)


def test_a_line_of_scontrol_is_read():
    pending = read_state(line("PENDING", "Resources"))
    assert str(pending) == "job 7: PENDING (Resources)" and not pending.ended
    assert str(read_state(line("RUNNING", again=1))) == "job 7: RUNNING, start 2"
    failed = read_state(line("FAILED", "NonZeroExitCode", code="2:0"))
    assert failed.ended and failed.code == 2
    array = "JobId=9 ArrayJobId=8 ArrayTaskId=1 JobState=COMPLETED ExitCode=0:0"
    assert str(read_state(array)) == "job 8_1: COMPLETED"


@pytest.mark.parametrize(
    ("state", "text", "code"),
    [
        ("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("CANCELLED", "0:15", 143),
        ("TIMEOUT", "0:0", 1), ("NODE_FAIL", "0:0", 1), ("OUT_OF_MEMORY", "0:125", 253),
    ],
)  # fmt: skip
def test_a_job_that_failed_never_ends_with_0(state, text, code):
    assert exit_code(state, text) == code


def test_without_slurm_it_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError) as refused:
        submit(request_of(str(tmp_path / "run")), SlurmChoice())
    assert str(refused.value) == (
        "slurm: there is no 'sbatch' on the PATH. "
        "Run this on a login node of the cluster, or add --dry-run to see the script."
    )


def test_a_job_that_sbatch_refuses_is_one_line(monkeypatch, tmp_path):
    said = "sbatch: error: Batch job submission failed: Requested node configuration is not there"
    put(tmp_path / "bin", monkeypatch, sbatch=f"echo '{said}' >&2; exit 1")
    with pytest.raises(WorldError) as refused:
        submit(request_of(str(tmp_path / "run")), SlurmChoice())
    assert str(refused.value) == (
        "slurm: sbatch refused the job (Batch job submission failed: Requested node configuration "
        "is not there). 'sinfo --long' lists what partitions have; --dry-run shows the script."
    )
    unknown = "echo \"sbatch: unrecognized option '--x'\" >&2; echo 'Try \"--help\" for more' >&2"
    put(tmp_path / "bin", monkeypatch, sbatch=f"{unknown}; exit 1")
    with pytest.raises(WorldError, match=r"the job \(sbatch: unrecognized option '--x'\)\."):
        submit(request_of(str(tmp_path / "run")), SlurmChoice())
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match=r"file/run cannot be written \(Not a directory\)"):
        submit(request_of(str(tmp_path / "file" / "run")), SlurmChoice())


def test_what_scontrol_forgot_is_asked_of_sacct(monkeypatch, tmp_path):
    forgot = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    put(tmp_path, monkeypatch, scontrol=forgot, sacct="echo '7|CANCELLED by 0|0:15'")
    (state,) = look("7")
    assert (state.state, state.code, state.ended) == ("CANCELLED", 143, True)
    put(tmp_path, monkeypatch, sacct="exit 1")
    with pytest.raises(WorldError, match=r"job 7 is forgotten by scontrol, and sacct knows"):
        look("7")
    put(tmp_path, monkeypatch, scontrol="echo 'Unable to contact slurm controller' >&2; exit 1")
    assert look("7") == []  # for a moment


def job_of(tmp_path, monkeypatch, scontrol):
    monkeypatch.setattr(queue_of, "POLL_SECONDS", 0.1)
    put(
        tmp_path / "bin",
        monkeypatch,
        sbatch=f"cat > {tmp_path}/given; echo 7",
        scontrol=scontrol,
        scancel=f"echo $* > {tmp_path}/cancelled",
    )
    return OnSlurm(request_of(str(tmp_path / "run")), allocation=None)


def test_a_job_is_submitted_followed_and_its_code_returned(monkeypatch, tmp_path, capsys):
    states = tmp_path / "states"
    states.write_text("\n".join([line("PENDING", "Priority"), line("RUNNING"), line("RUNNING")]))
    last = line("FAILED", code="3:0")
    scontrol = f"head -n 1 {states} | grep . || echo '{last}'; sed -i 1d {states}"
    job = job_of(tmp_path, monkeypatch, scontrol)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "slurm-7.out").write_text("step 1\n")
    reported = []
    assert job.start(reported.append, sys.stdout) == 3
    assert reported == [
        f"job 7: submitted; it writes to {tmp_path}/run",
        "job 7: PENDING (Priority)", "job 7: RUNNING", "job 7: FAILED",
    ]  # fmt: skip
    assert capsys.readouterr().out == "step 1\n"
    assert (tmp_path / "given").read_text() == job.text()
    assert job.start(reported.append, sys.stdout, detach=True) == 0


def test_a_job_that_would_wait_for_ever_is_taken_back(monkeypatch, tmp_path):
    states = tmp_path / "states"
    states.write_text(line("PENDING", "PartitionConfig") + "\n" + line("PENDING", "Priority"))
    forever = line("PENDING", "PartitionConfig")
    scontrol = f"head -n 1 {states} | grep . || echo '{forever}'; sed -i 1d {states}"
    job, reported = job_of(tmp_path, monkeypatch, scontrol), []
    with pytest.raises(WorldError) as refused:
        job.start(reported.append, sys.stdout)
    assert str(refused.value) == (
        "slurm: job 7 would wait for ever (PartitionConfig), and was cancelled. "
        "'sinfo --long' lists what partitions have; --dry-run shows the script."
    )
    assert reported[1:] == [
        f"job 7: PENDING ({why})" for why in ("PartitionConfig", "Priority")
    ] + ["job 7: PENDING (PartitionConfig)"]
    assert (tmp_path / "cancelled").read_text() == "7\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_launcher_that_is_asked_to_stop_cancels_the_job_once(monkeypatch, tmp_path, number, code):
    ended, running = line("CANCELLED", code="0:15"), line("RUNNING")
    scontrol = f"test -e {tmp_path}/cancelled && echo '{ended}' || echo '{running}'"
    job, reported = job_of(tmp_path, monkeypatch, scontrol), []

    def interrupt():
        while "job 7: RUNNING" not in reported:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(number)
    assert job.start(reported.append, sys.stdout) == code
    assert reported[-2:] == ["cancelling job 7", "job 7: CANCELLED"]
    assert (tmp_path / "cancelled").read_text() == "7\n"
    assert signal.getsignal(number) is before


def test_a_second_interrupt_leaves_at_once(monkeypatch, tmp_path):
    job, reported = job_of(tmp_path, monkeypatch, f"echo '{line('RUNNING')}'"), []

    def interrupt():
        while "job 7: RUNNING" not in reported:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)
        while "cancelling job 7" not in reported:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        job.start(reported.append, sys.stdout)


def test_a_launcher_that_is_asked_to_stop_does_not_wait_for_a_server_that_is_gone(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(queue_of, "SILENT_LOOKS", 2)
    gone = f"touch {tmp_path}/looked; echo 'Unable to contact slurm controller' >&2; exit 1"
    job, reported = job_of(tmp_path, monkeypatch, gone), []

    def interrupt():
        while not (tmp_path / "looked").exists():  # who looks hears signals already
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert job.start(reported.append, sys.stdout) == 130
    assert reported[-1] == "slurm does not answer: 'scancel 7' when it does again"
