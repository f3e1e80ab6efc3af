"""The script that sbatch is given, and srun where there are machines already."""

import shlex
import subprocess
from pathlib import Path

import pytest

from stepladder.errors import PlanError, WorldError
from stepladder.launch import OnSlurm, Resources, SlurmChoice
from stepladder.launch.slurm.slurm_script import Allocation, script, within
from tests.launch.stand_in_programs import put
from tests.launch.test_run_request import request_of


def test_the_script_of_two_machines():
    wanted = Resources(gpus=8, cpus=96, memory_bytes=512 * 2**30)
    request = request_of(least=2, most=2, ranks=8, resources=wanted)
    choice = SlurmChoice(partition="gpu", time="12:00:00", sbatch=("--qos=high",))
    assert script(request, choice).splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=run",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=96",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --mem=524288M",
        "#SBATCH --time=12:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=USR1@60",
        "#SBATCH --chdir=/w",
        "#SBATCH --output=/shared/run/slurm-%j.out",
        "#SBATCH --qos=high",
        "",
        "# The first node is where the launchers meet.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'host=$(scontrol --oneliner show node "$first" | '
        "sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')",
        "port=$((20000 + SLURM_JOB_ID % 10000))",
        "",
        "srun --ntasks-per-node=1 --cpus-per-task=96 --kill-on-bad-exit=0 --wait=0 \\",
        "  /py -m stepladder.cli.main train /w/RUN.toml --run.folder /shared/run "
        '--nodes "$SLURM_JOB_NUM_NODES" --rendezvous "${host:-$first}:$port"',
        "code=$?",
        "# Taken off after saving: back into the queue, unless somebody cancelled the job.",
        'state=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)',
        'if [ $code = 143 ] && [ "$state" = RUNNING ]; then',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        "exit $code",
    ]


def test_machines_that_may_leave_are_a_range_and_do_not_take_the_job_with_them():
    said = script(request_of(least=1, most=4), SlurmChoice())
    assert "#SBATCH --nodes=1-4\n" in said and "#SBATCH --no-kill\n" in said
    assert '--nodes 1:"$SLURM_JOB_NUM_NODES"' in said and "--no-kill --kill-on-bad-exit=0" in said


def test_a_sweep_is_an_array_with_a_folder_for_each():
    points = (("--optimizer.lr", "0.1"), ("--optimizer.lr", "a b"))
    said = script(request_of(), SlurmChoice(points=points))
    assert "#SBATCH --array=0-1\n" in said
    assert "  0) point=(--optimizer.lr 0.1 --run.folder /shared/run/0) ;;\n" in said
    assert "  1) point=(--optimizer.lr 'a b' --run.folder /shared/run/1) ;;\n" in said
    assert ' "${point[@]}"\n' in said and "--output=/shared/run/slurm-%A_%a.out" in said


@pytest.mark.parametrize("choice", [SlurmChoice(), SlurmChoice(points=(("--a.b", "1"),))])
def test_a_shell_can_read_the_script(choice):
    for request in (request_of(), request_of(least=1, most=4)):
        given = script(request, choice)
        subprocess.run(["bash", "-n"], input=given, text=True, check=True)


def directives(text):
    """The options of a script as sbatch reads them: words in quotes are one."""
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    return [word for line in lines for word in shlex.split(line)]


def test_names_with_spaces_and_quotes_stay_one_option():
    odd = Path('/w/it\'s "a" 50% #1')
    choice = SlurmChoice(partition="p q", sbatch=("--qos high", "--comment='two words'"))
    said = directives(script(request_of(directory=odd, folder=str(odd)), choice))
    assert f"--chdir={odd}" in said and "--partition=p q" in said
    assert f"--output={str(odd).replace('%', '%%')}/slurm-%j.out" in said
    assert said[-3:] == ["--qos", "high", "--comment=two words"]


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        (
            SlurmChoice(time="90m"),
            "time: '90m' is not a time of Slurm's. "
            "Write minutes (90), 1:30:00, or days and hours (2-12).",
        ),
        (
            SlurmChoice(time="1:00"),
            "time: '1:00' is 60 s to Slurm, and a run hears 60 s before. "
            "Write hours as 1:00:00, minutes as 60.",
        ),
        (
            SlurmChoice(account="a\n#SBATCH --exclusive"),
            "account: 'a\\n#SBATCH --exclusive' holds a letter that sbatch does not take. "
            "Leave backslashes and line breaks out.",
        ),
        (
            SlurmChoice(sbatch=("--comment='x",)),
            'sbatch: "--comment=\'x" cannot be read (no closing quotation). Close every quote.',
        ),
    ],
)
def test_what_sbatch_would_not_take_is_said_before(choice, problem):
    with pytest.raises(PlanError) as refused:
        script(request_of(), choice)
    assert str(refused.value) == problem


@pytest.mark.parametrize(
    "time", ["90", "2:00", "1:30:00", "2-12", "0-1:30", "1-0:0:1", "UNLIMITED"]
)
def test_every_way_to_write_a_time_is_taken(time):
    assert f"--time={time}" in script(request_of(), SlurmChoice(time=time))


RUN = """
scontrol() { echo "scontrol $*"; }; squeue() { echo $STATE; }; srun() { return $CODE; }
"""


@pytest.mark.parametrize(
    ("code", "state", "requeued"),
    [(143, "RUNNING", True), (143, "COMPLETING", False), (1, "RUNNING", False), (0, "", False)],
)
def test_only_what_was_taken_off_goes_back_into_the_queue(code, state, requeued):
    given = RUN + script(request_of(), SlurmChoice())
    environment = {"CODE": str(code), "STATE": state, "SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash"], input=given, text=True, capture_output=True, env=environment)
    assert done.returncode == code
    assert done.stdout == "scontrol requeue 7\n" * requeued


HERE = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
SCONTROL = """
case "$*" in
*hostnames*) printf 'n1\\nn2\\n' ;;
*) echo "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1" ;;
esac
"""


def test_inside_an_allocation_srun_starts_the_run_on_its_machines(tmp_path, monkeypatch):
    put(tmp_path, monkeypatch, scontrol=SCONTROL)
    allocation = Allocation.from_environment(HERE)
    assert Allocation.from_environment({}) is None
    assert Allocation.from_environment({"SLURM_JOB_ID": "12345"}) is None  # half of it
    words = within(request_of(least=2, most=2), SlurmChoice(), allocation)
    assert words[:1] == ["srun"] and "--nodes=2" in words
    assert words[-4:] == ["--nodes", "2", "--rendezvous", "10.0.0.1:22345"]
    assert OnSlurm(request_of(), allocation=allocation).text().startswith("srun --ntasks-per-node")
    fewer = within(request_of(least=1, most=4), SlurmChoice(), allocation)
    assert fewer[-4:-2] == ["--nodes", "1:2"]


def test_what_an_allocation_is_not_is_said(tmp_path, monkeypatch):
    allocation = Allocation("7", 2, "n[1-2]")
    with pytest.raises(WorldError) as refused:
        within(request_of(least=4, most=4), SlurmChoice(), allocation)
    assert str(refused.value) == (
        "nodes: 4 asked for and job 7 has 2. Use --nodes 2, or a larger allocation."
    )
    with pytest.raises(PlanError, match=r"^time: is settled by job 7, in which this runs\. Leave"):
        within(request_of(), SlurmChoice(time="1"), allocation)
    put(tmp_path, monkeypatch, scontrol="echo 'scontrol: error: Invalid hostlist' >&2; exit 1")
    with pytest.raises(WorldError, match=r"scontrol does not know the nodes n\[1-2\] \(Invalid"):
        within(request_of(least=2, most=2), SlurmChoice(), allocation)
