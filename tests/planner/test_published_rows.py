"""Published rows, read by general rules, and the command that sets forecasts beside them."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.errors import StepladderError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "planner"


@pytest.fixture(scope="module")
def rows():
    files = [FOLDER / "published.csv", FOLDER / "more.csv"]
    return {row["id"]: row for file in files for row in csv.DictReader(file.open())}


@pytest.fixture(scope="module")
def reader():
    sys.path.insert(0, str(FOLDER))
    try:
        import published_rows

        yield published_rows
    finally:
        sys.path.remove(str(FOLDER))


def test_lora_rows_are_frozen_but_for_the_products_they_name(reader, rows):
    named = reader.facts_of_row(reader.whole_row(rows["LG-001"]))  # "LoRA r8 q,v"
    assert sum(p.count * (p.parameters - p.frozen_parameters) for p in named.parts) == 4194304
    every = reader.facts_of_row(reader.whole_row(rows["AM-002"]))  # "LoRA r16 all *_proj"
    assert len(every.blocks[0].matmuls) == 3 * 7
    assert reader.plan_of_row(reader.whole_row(rows["AM-002"])).precision.name == "bf16-pure"


def test_what_a_row_does_not_say_of_recomputation_is_tried_in_order(reader, rows):
    unsaid = reader.plans_of_row(reader.whole_row(rows["NM2-003"]))
    assert [str(plan.recompute) for plan in unsaid] == ["none", "selective", "every:2", "blocks"]
    said = reader.plans_of_row(reader.whole_row(rows["FMA-010"]))
    assert [str(plan.recompute) for plan in said] == ["blocks"]


def test_offload_and_head_width_are_read_from_the_notes(reader, rows):
    assert reader.plan_of_row(reader.whole_row(rows["MB2-066"])).offload == ("activations",)
    assert (
        reader.facts_of_row(reader.whole_row(rows["TT2-001"])).blocks[0].attention.head_width == 128
    )


def test_every_row_that_is_kept_here_is_understood(reader, rows):
    for row in map(reader.whole_row, rows.values()):
        device = reader.device_of_row(row)
        assert reader.facts_of_row(row).tokens > 1
        assert reader.cluster_of_row(row, device).num_devices == reader.number(row, "n_gpus")
        assert reader.plans_of_row(row)


def test_mixtures_and_images_are_read_where_their_shape_is_told(reader):
    files = (FOLDER / "experts.csv", FOLDER / "vision.csv")
    rows = {row["id"]: reader.whole_row(row) for f in files for row in csv.DictReader(f.open())}
    mixture = rows["MOE-MB-116"]
    assert reader.facts_of_row(mixture).active_parameters == pytest.approx(3.3e9, rel=0.05)
    assert reader.plan_of_row(mixture).layout.experts == 8
    for told, parameters in (("TIMM-125", 86.6e6), ("TIMM-045", 25.6e6)):
        assert reader.facts_of_row(rows[told]).parameters == pytest.approx(parameters, rel=0.01)
    for untold, words in (("TIMM-001", "shape of mobilenetv3"), ("MOE-MB-034", "latent attention")):
        with pytest.raises(StepladderError, match=words):
            reader.facts_of_row(rows[untold])


def test_the_command_reads_a_file_of_rows(rows, tmp_path):
    file = tmp_path / "rows.csv"
    chosen = [rows["FMA-053"], {**rows["FMA-058"], "id": "odd", "precision": "int3"}]
    with file.open("w") as out:
        writer = csv.DictWriter(out, list(chosen[0]))
        writer.writeheader()
        writer.writerows(chosen)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "planner_published.py"),
        "--rows",
        str(file),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "| foundation-model-stack/fms-acceleration | 1 |" in shown
    assert "- odd: precision: 'int3' is not understood in row odd" in shown
    assert "rows that ran: 1; forecast not to fit: 0" in shown
