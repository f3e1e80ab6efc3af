"""A job followed by what kubectl says. No cluster runs here: kubectl is a script that answers."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from stepladder.errors import WorldError
from stepladder.launch import KubernetesChoice, OnKubernetes
from stepladder.launch.kubernetes import kubectl as kubectl_of
from tests.launch.stand_in_programs import put
from tests.launch.test_run_request import request_of

PLACE = OnKubernetes(request_of(), KubernetesChoice("image:1", namespace="team"))


def job(*conditions, active=0):
    held = [{"type": name, "status": "True"} for name in conditions]
    return json.dumps({"status": {"conditions": held, "active": active}})


def pods(*codes):
    ended = [{"state": {"terminated": {"exitCode": code}}} for code in codes]
    return json.dumps({"items": [{"status": {"containerStatuses": [one]}} for one in ended]})


def answering(tmp_path, monkeypatch, states, pods_said="{}"):
    """A kubectl that gives each answer once, and the last one for ever.

    The first holds until the pods were heard: how fast they are is not what is tested.
    """
    monkeypatch.setattr(kubectl_of, "POLL_SECONDS", 0.1)
    (tmp_path / "states").write_text("\n".join(states) + "\n")
    states_file = tmp_path / "states"
    put(tmp_path / "bin", monkeypatch, kubectl=f"""
        shift 2
        case "$1 $2" in
        apply*) cat > {tmp_path}/given ;;
        logs*) echo "step 1"; touch {tmp_path}/heard; exec sleep 600 ;;
        "get pods") echo '{pods_said}' ;;
        get*) test -e {tmp_path}/deleted && exit 1
              head -n 1 {states_file}
              test -e {tmp_path}/heard && test $(wc -l < {states_file}) -gt 1 &&
                sed -i 1d {states_file}
              exit 0 ;;
        delete*) echo "$*" > {tmp_path}/deleted ;;
        esac
    """)  # fmt: skip


def test_a_job_is_applied_and_its_output_followed(tmp_path, monkeypatch, capfd):
    answering(tmp_path, monkeypatch, [job(), job(active=1), job(active=1), job("Complete")])
    reported = []
    assert PLACE.start(reported.append, sys.stdout) == 0
    assert reported == [
        "job run: applied", "job run: Pending", "job run: Running", "job run: Complete"
    ]  # fmt: skip
    assert capfd.readouterr().out.startswith("step 1\n")
    assert (tmp_path / "given").read_text() == PLACE.text()
    assert PLACE.start(reported.append, sys.stdout, detach=True) == 0


@pytest.mark.parametrize(("codes", "code"), [((143, 2), 2), ((137, 1), 1), ((), 1), ((7,), 7)])
def test_a_failed_job_ends_with_its_pods_code(tmp_path, monkeypatch, codes, code):
    answering(tmp_path, monkeypatch, [job("FailureTarget", "Failed")], pods(*codes))
    assert PLACE.start(lambda line: None, sys.stdout) == code


def test_a_launcher_that_is_asked_to_stop_deletes_the_job(tmp_path, monkeypatch):
    answering(tmp_path, monkeypatch, [job(active=1)])
    reported = []

    def interrupt():
        while "job run: Running" not in reported:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    assert PLACE.start(reported.append, sys.stdout) == 143
    assert reported[-1] == "deleting job run"
    assert (
        tmp_path / "deleted"
    ).read_text() == "delete job run --cascade=foreground --wait=false\n"


def test_a_cluster_that_refuses_and_a_missing_kubectl_are_one_line(tmp_path, monkeypatch):
    said = "error: jobs.batch is forbidden"
    put(tmp_path, monkeypatch, kubectl=f"echo '{said}' >&2; exit 1")
    with pytest.raises(WorldError, match=r"the cluster refused the job \(jobs\.batch is forbidden"):
        PLACE.start(print, sys.stdout)
    said = 'error validating data: Get "http://h:1/openapi": dial tcp 10.0.0.1:1: refused; if you'
    put(tmp_path, monkeypatch, kubectl=f"echo '{said}' >&2; exit 1")
    with pytest.raises(WorldError) as nobody:
        PLACE.start(print, sys.stdout)
    assert str(nobody.value) == (
        "kubernetes: no cluster answers kubectl (dial tcp 10.0.0.1:1: refused). "
        "Name one: 'kubectl config use-context NAME'; --dry-run shows the job."
    )
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(WorldError, match=r"^kubernetes: there is no 'kubectl' on the PATH"):
        PLACE.start(print, sys.stdout)
