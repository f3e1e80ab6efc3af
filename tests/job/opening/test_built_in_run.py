"""What `stepladder train` trains without a recipe: by the machine, never against the user."""

import pytest
import torch

from stepladder.job.opening import built_in_run
from stepladder.job.opening.built_in_run import choose_for_gpu, largest_micro, read_built_in
from stepladder.plan import Plan, Recipe

GIB = 2**30
CUDA = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose GPU is of this name and size."""

    def pretend(name: str, memory_bytes: int) -> None:
        def cluster(_):
            from stepladder.hardware import Cluster, find_device

            if name == "unheard of":
                raise LookupError(name)
            device = find_device(name)
            return Cluster(device, 1, 1, device.link, device.network, 64 * GIB)

        monkeypatch.setattr(built_in_run, "pick_device", lambda _: CUDA)
        monkeypatch.setattr(built_in_run, "cluster_for", cluster)
        monkeypatch.setattr(built_in_run, "device_memory_bytes", lambda _: memory_bytes)
        monkeypatch.setattr(built_in_run, "precision_for", lambda _: ("bf16", "has bf16 units"))
        monkeypatch.setattr(built_in_run, "can_compile", lambda _: True)

    return pretend


def test_a_cpu_trains_the_small_gpt_and_its_steps_follow_from_a_probe():
    found = read_built_in(["--train.device", "cpu"])
    assert found.sized and found.recipe.model == Recipe().model
    assert found.recipe.plan_choice() == Plan.parse("fp32") and "fp32 is exact" in found.because


def test_a_large_gpu_trains_gpt2_compiled_in_one_micro_batch(gpu):
    gpu("H200", 139 * GIB)
    found = read_built_in([])
    recipe, plan = found.recipe, found.recipe.plan_choice()
    assert (recipe.model.name, recipe.model.sequence, recipe.train.batch) == ("gpt2", 1024, 32)
    assert plan.compile and plan.kernels and plan.batch.micro == 32 and found.sized
    assert recipe.optimizer_choice().lr == 6e-4 and "vocabulary" in found.because


def test_muon_keeps_its_own_rate_on_a_gpu(gpu):
    gpu("H200", 139 * GIB)
    muon = read_built_in(["--optimizer.name", "muon"]).recipe.optimizer_choice()
    assert (muon.lr, muon.adamw_lr) == (0.02, 6e-4)


def test_a_smaller_gpu_gets_a_smaller_micro_batch(gpu):
    gpu("RTX4090", 24 * GIB)
    assert largest_micro(CUDA, "bf16") in (4, 8, 16)


def test_a_gpu_without_room_trains_the_small_gpt_and_says_why(gpu):
    gpu("T4", 1 * GIB)
    recipe, because = choose_for_gpu(Recipe(), CUDA, set())
    assert recipe.model == Recipe().model and "does not fit" in because


def test_a_gpu_that_nobody_knows_is_judged_by_its_memory(gpu):
    gpu("unheard of", 24 * GIB)
    assert largest_micro(CUDA, "bf16") == 4
    gpu("unheard of", 8 * GIB)
    assert largest_micro(CUDA, "bf16") is None


@pytest.mark.parametrize(
    "words",
    [
        ["--model.name", "llama-tiny"],
        ["--data.seed", "3"],
        ["--train.batch", "8"],
        ["--plan.precision", "fp32"],
    ],
)
def test_what_is_stated_stays_and_only_the_steps_are_chosen(gpu, words):
    gpu("H200", 139 * GIB)
    found = read_built_in(words)
    assert found.sized and found.recipe.model.name in ("gpt-tiny", "llama-tiny")
    assert found.recipe.train.batch in (8, Recipe().train.batch)


def test_a_stated_rate_and_plan_are_kept_on_a_gpu(gpu):
    gpu("H200", 139 * GIB)
    assert read_built_in(["--optimizer.lr", "1e-3"]).recipe.optimizer_choice().lr == 1e-3
    assert read_built_in([], plan="fp32").recipe == Recipe()


def test_stated_steps_are_exact_and_nothing_is_probed(gpu):
    gpu("H200", 139 * GIB)
    found = read_built_in(["--train.steps", "7"])
    assert not found.sized and found.recipe.train.steps == 7
    assert found.recipe.model == Recipe().model and not found.recipe.plan


def test_a_resumed_run_is_what_its_folder_says(tmp_path):
    sized = read_built_in(["--train.device", "cpu"]).recipe
    (tmp_path / "run.toml").write_text(sized.to_toml().replace("steps = 500", "steps = 37"))
    words = ["--run.folder", str(tmp_path), "--run.resume", "true"]
    found = read_built_in(words)
    assert found.recipe.train.steps == 37 and not found.sized
    assert found.recipe.plan_choice() == Plan.parse("fp32")
    assert read_built_in([*words, "--train.steps", "40"]).recipe.train.steps == 40
