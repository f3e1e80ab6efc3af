"""`stepladder checkpoint`: prove, look into, and turn into what others read."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stepladder.checkpoint import TensorSource, write_checkpoint
from stepladder.checkpoint.safetensors_file import open_tensors
from stepladder.cli.main import main
from stepladder.model import build
from stepladder.train import climb
from tests.train.toys import net, ragged

SHAPES = {
    "gpt": "gpt:layers=2,hidden=32,heads=2,vocab=64,sequence=16",
    "llama": "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=48,vocab=64,sequence=16",
}
TOKENS = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(3))


def saved(folder, name="gpt", steps=2):
    run = climb(build(SHAPES[name]), loss="cross_entropy", optimizer="adamw lr=0.01", plan="fp32")
    for batch in ragged(steps):
        run.step(batch)
        run.save(folder)
    return run


def answered(capsys, *words) -> tuple[int, dict]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_reads_every_checkpoint_and_names_the_damaged(tmp_path, capsys):
    saved(tmp_path)
    code, found = answered(capsys, "checkpoint", "verify", str(tmp_path))
    assert code == 0
    assert [row["whole"] for row in found["checkpoints"]] == [True, True]
    victim = tmp_path / "step-000002" / "optimizer-00000.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    code, found = answered(capsys, "checkpoint", "verify", str(tmp_path))
    assert code == 1
    assert [row["whole"] for row in found["checkpoints"]] == [False, True]
    assert "optimizer-00000.safetensors is not what was written" in found["checkpoints"][0]["found"]


def test_inspect_says_where_the_run_stood(tmp_path, capsys):
    run = saved(tmp_path)
    code, found = answered(capsys, "checkpoint", "inspect", str(tmp_path), "--tensors")
    assert code == 0
    assert (found["step"], found["samples seen"]) == (2, 24)
    assert found["model numbers"] == sum(p.numel() for p in run.module.parameters())
    names = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert names["model/embedding.weight"]["shape"] == [64, 32]
    assert "optimizer/norm.weight/exp_avg" in names
    assert found["written by"] == "1 rank" and found["size"].endswith(" KiB")
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shard", ["5", "0.00001"])
def test_transformers_computes_the_same_from_what_was_converted(tmp_path, capsys, name, shard):
    transformers = pytest.importorskip("transformers", reason="foreign models need transformers")
    run = saved(tmp_path / "run", name)
    out = tmp_path / "hf"
    code, found = answered(
        capsys, "checkpoint", "convert", str(tmp_path / "run"), str(out), "--shard", shard
    )
    assert code == 0
    files = [path for path in found["written"] if path.endswith(".safetensors")]
    assert len(files) == 1 if shard == "5" else len(files) > 3
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.allclose(theirs(TOKENS).logits, run.module.eval()(TOKENS), atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_there_and_back_is_the_same_to_the_bit(tmp_path, name):
    run = saved(tmp_path / "run", name)
    assert main(["checkpoint", "convert", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    words = ["checkpoint", "convert", str(tmp_path / "hf"), str(tmp_path / "back")]
    assert main([*words, "--to", "checkpoint"]) == 0
    other = climb(
        build(SHAPES[name], seed=9), loss="cross_entropy", optimizer="adamw lr=0.01", plan="fp32"
    )
    other.load(tmp_path / "back")
    assert other.index == 0
    for (label, one), two in zip(run.module.named_parameters(), other.module.parameters()):
        assert torch.equal(one, two), label
    other.step(ragged(1)[0]).read()


def test_a_foreign_model_keeps_its_names_and_may_change_type(tmp_path):
    run = climb(net(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    run.save(tmp_path / "run")
    words = ["checkpoint", "convert", str(tmp_path / "run"), str(tmp_path / "out")]
    assert main([*words, "--dtype", "bfloat16"]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    expected = run.module.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[k], v.bfloat16()) for k, v in expected.items())
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_state_dict_loads_without_pickled_code(tmp_path):
    run = climb(net(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    run.save(tmp_path / "run")
    words = ["checkpoint", "convert", str(tmp_path / "run"), str(tmp_path / "model.pt")]
    assert main([*words, "--to", "state_dict"]) == 0
    net(seed=4).load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert main([*words, "--to", "state_dict"]) == 2


MISTAKES = [
    (["verify", "{}/none"], "checkpoint: {}/none holds none. Name a folder"),
    (["convert", "{}/run"], "out: is missing. Say where: convert PATH OUT."),
    (["convert", "{}/run", "{}/run"], "out: {}/run exists. Name a new place."),
    (
        ["convert", "{}/run", "{}/x", "--to", "checkpoint"],
        "checkpoint: {}/run holds no safetensors",
    ),
    (["convert", "{}/run", "{}/x", "--shard", "0"], "shard: 0 is not a size in GiB. Try 5."),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_one_line(tmp_path, capsys, words, said):
    saved(tmp_path / "run", steps=1)
    capsys.readouterr()
    assert main(["checkpoint", *(word.format(tmp_path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said.format(tmp_path)) and error.count("\n") == 1


@pytest.mark.parametrize("to", ["huggingface", "state_dict"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys, to):
    saved(tmp_path / "run", steps=1)
    out = "/proc/nothing/here"
    assert main(["checkpoint", "convert", str(tmp_path / "run"), out, "--to", to]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("checkpoint: /proc/") and "cannot be read or written (No such" in line


def test_a_damaged_checkpoint_is_not_converted(tmp_path, capsys):
    saved(tmp_path / "run", steps=1)
    victim = tmp_path / "run" / "step-000001" / "model-00000.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    assert main(["checkpoint", "convert", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_an_index_cannot_lead_out_of_its_folder(tmp_path, capsys):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "../secret.safetensors"}})
    )
    words = ["checkpoint", "convert", str(folder), str(tmp_path / "x")]
    assert main([*words, "--to", "checkpoint", "--names", "same"]) == 2
    assert "leads out of its folder" in capsys.readouterr().err


def test_an_index_that_is_none_says_so(tmp_path, capsys):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text("[1]")
    words = ["checkpoint", "convert", str(folder), str(tmp_path / "x")]
    assert main([*words, "--to", "checkpoint", "--names", "same"]) == 2
    assert "is no index (" in capsys.readouterr().err


WATCHED = """
import json, os, sys, threading, time
from pathlib import Path
from stepladder.cli.main import main
import stepladder.checkpoint, stepladder.model, stepladder.workload, torch

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) * 1024

def convert(words):
    peak, done = own(), False
    def watch():
        nonlocal peak
        while not done:
            peak = max(peak, own())
            time.sleep(0.001)
    thread = threading.Thread(target=watch)
    before = own()
    thread.start()
    code = main(words)
    done = True
    thread.join()
    print("PEAK", code, peak - before, flush=True)

for words in json.loads(sys.argv[1]):  # each in a process that has converted nothing yet
    if not os.fork():
        convert(words)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_conversion_holds_a_fraction_of_the_model(tmp_path):
    """256 MiB of tensors of 4 MiB, out to both formats and back, in less than half of it.

    Eight chunks of 8 MiB wait for a slow disk, beside the one that is being filled.
    """
    rows, count = 2**20, 64
    sources = [
        TensorSource(f"w{i}", torch.float32, (rows,), partial(torch.full, (rows,), float(i)))
        for i in range(count)
    ]
    state = {"step": 0, "position": 0, "seed": 0, "loss_scale": {}, "versions": {}}
    write_checkpoint(sources, tmp_path / "run", state, 2**40)
    legs = [
        ("run", "hf", "--to", "huggingface"),
        ("run", "model.pt", "--to", "state_dict"),
        ("run", "half.pt", "--to", "state_dict", "--dtype", "bfloat16"),
        ("hf", "back", "--to", "checkpoint"),
    ]
    commands = [
        ["checkpoint", "convert", str(tmp_path / there), str(tmp_path / here), *words,
         "--names", "same", "--json"]
        for there, here, *words in legs
    ]  # fmt: skip
    script = tmp_path / "watched.py"
    script.write_text(WATCHED)
    done = subprocess.run(
        [sys.executable, script, json.dumps(commands)],
        capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    peaks = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("PEAK")]
    assert len(peaks) == len(legs), done.stdout + done.stderr
    for leg, (code, peak) in zip(legs, peaks):
        assert code == "0" and int(peak) < rows * 4 * count / 2, (leg, int(peak) / 2**20)
    found = torch.load(tmp_path / "model.pt", weights_only=True, mmap=True)
    assert [found[f"w{i}"][-1].item() for i in range(count)] == list(range(count))
    assert torch.load(tmp_path / "half.pt", weights_only=True)["w3"].dtype == torch.bfloat16
    with open_tensors(tmp_path / "back" / "step-000000" / "model-00000.safetensors") as file:
        assert torch.equal(file.tensor("w7"), found["w7"])
    assert not list(tmp_path.glob(".*"))  # nothing on the way is left behind
