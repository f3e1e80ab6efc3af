"""Each tracker against its real package, offline, and what it wrote read back."""

import http.client
import socket
import time

import pytest

from stepladder.errors import PlanError
from stepladder.record import Journal, read_journal
from stepladder.track import Target, TrackedJournal, open_journal
from stepladder.track import tracked_journal as tracking
from stepladder.track.prometheus import Prometheus
from tests.ports import free_port


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A crowded machine gives trackers little time, and here they shall take every entry."""
    monkeypatch.setattr(tracking, "CLOSING_SECONDS", 200.0)


def write_run(folder, track):
    with open_journal(folder, track) as journal:
        journal.write("start", plan="bf16 zero3", step=0, because="it fits")
        for step in range(3):
            journal.write("step", step=step, loss=3.0 - step, lr=0.1, mfu=None)
        journal.write("evaluation", step=2, loss=1.5)
        journal.write("logged", step=2, name="accuracy", value=0.75)
        journal.write("event", step=2, text="a spike")
        journal.write("summary", steps=3, sample="x")
    assert list(read_journal(folder, kind="event")) == [
        {"kind": "event", "step": 2, "text": "a spike"}
    ], "no tracker failed"


def test_tensorboard_event_files_hold_the_curves(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_run(tmp_path, "tensorboard")
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [
        (0, 3.0),
        (1, 2.0),
        (2, 1.0),
    ]
    assert [e.value for e in found.Scalars("validation/loss")] == [1.5]
    assert [(e.step, e.value) for e in found.Scalars("accuracy")] == [(2, 0.75)]
    assert {"plan/text_summary", "events/text_summary"} <= {*found.Tags()["tensors"]}


def test_tensorboard_forgets_steps_that_a_resumed_run_repeats(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_run(tmp_path, "tensorboard")
    with open_journal(tmp_path, "tensorboard") as journal:
        journal.write("start", plan="bf16", step=1)
        journal.write("step", step=1, loss=20.0)
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(0, 3.0), (1, 20.0)]


def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    datastore = pytest.importorskip("wandb.sdk.internal.datastore")
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_run(tmp_path, "wandb")
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    store = datastore.DataStore()
    store.open_for_scan(str(kept))
    rows = []
    while (data := store.scan_data()) is not None:
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({(i.key or "/".join(i.nested_key)): i.value_json for i in items})
    losses = [(row["step"], float(row["train/loss"])) for row in rows if "train/loss" in row]
    assert losses == [("0", 3.0), ("1", 2.0), ("2", 1.0)]
    assert any(row.get("validation/loss") == "1.5" for row in rows)
    assert [row["step"] for row in rows if row.get("accuracy") == "0.75"] == ["2"]


def test_wandb_asks_nobody_to_log_in(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(PlanError) as caught:
        open_journal(tmp_path / "run", "wandb")
    assert str(caught.value) == (
        "run.track: wandb does not open (nobody is logged in). "
        "Run 'wandb login', or set WANDB_MODE=offline."
    )


@pytest.mark.soak  # it takes ten seconds to import and to lay out its tables
def test_mlflow_keeps_a_run_in_a_file(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)  # where it would leave artifacts
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    write_run(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("stepladder").experiment_id
    (run,) = client.search_runs([experiment])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((m.step, m.value) for m in history) == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert run.data.metrics["validation/loss"] == 1.5
    assert run.data.metrics["accuracy"] == 0.75
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.tags["plan"] == "bf16 zero3"


def test_mlflow_without_a_place_to_write_is_told_before_the_first_step(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with pytest.raises(PlanError, match=r"mlflow does not open \(.*nowhere") as caught:
        open_journal(tmp_path, "mlflow")
    assert str(caught.value).endswith(
        "Set MLFLOW_TRACKING_URI to a server that answers, or to sqlite:///FILE."
    )
    Journal(tmp_path).close()  # nothing stayed locked


def ask(port, path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_prometheus_reads_the_newest_numbers(tmp_path):
    source = Prometheus('a "run"', "127.0.0.1", free_port())  # which nobody else takes afterwards
    with TrackedJournal(Journal(tmp_path), [source]) as journal:
        journal.write("step", step=7, loss=2.5, tokens_per_second=100.0)
        journal.write("logged", step=7, name="val/accuracy", value=0.5)
        journal.write("save", step=7, path="step-000008")
        deadline = time.monotonic() + 120
        while "} 1" not in source.text().partition("saves_total{")[2].partition("\n")[0]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        status, kind, text = ask(source.port)
        assert status == 200 and kind.startswith("text/plain; version=0.0.4")
        assert ask(source.port, "/etc/passwd")[0] == 404
    assert 'stepladder_train_loss{run="a \\"run\\""} 2.5\n' in text
    assert 'stepladder_val_accuracy{run="a \\"run\\""} 0.5\n' in text
    assert 'stepladder_step{run="a \\"run\\""} 7\n' in text
    assert 'stepladder_saves_total{run="a \\"run\\""} 1\n' in text
    assert "# TYPE stepladder_speed_tokens_per_second gauge" in text
    with pytest.raises(OSError):
        ask(source.port)


def test_a_port_that_is_taken_is_a_users_mistake(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PlanError) as caught:
        port = taken.getsockname()[1]
        open_journal(tmp_path, [Target("prometheus", "127.0.0.1", port)])
    assert str(caught.value) == (
        f"run.track: prometheus cannot be served on 127.0.0.1 port {port} "
        "(Address already in use). Name another port, or 0 for any that is free."
    )
