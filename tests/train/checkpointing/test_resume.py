"""What is said of a run that goes on."""

from stepladder.checkpoint import TensorSource, write_checkpoint
from stepladder.train import climb
from tests.train.toys import net, pairs


def start(rate, optimizer="sgd lr=0.1", seed=0):
    return climb(
        net(), loss="cross_entropy", optimizer=optimizer, plan="fp32", rate=rate, seed=seed
    )


def test_a_run_that_goes_on_at_another_rate_says_so(tmp_path):
    first = start("cosine warmup=2 steps=10")
    first.step(pairs(1)[0])
    first.save(tmp_path)

    same = start("cosine warmup=2 steps=10")
    same.load(tmp_path)
    assert same.events == []

    longer = start("cosine warmup=2 steps=20", "sgd lr=0.2")
    longer.load(tmp_path)
    rate, optimizer = longer.events
    assert rate.startswith("the rate was 'cosine warmup=2 steps=10") and "steps=20" in rate
    assert optimizer.startswith("the optimizer was 'sgd lr=0.1") and "lr=0.2" in optimizer


def test_a_run_that_goes_on_keeps_its_seed_and_says_so(tmp_path):
    first = start("constant", seed=3)
    first.save(tmp_path)
    other = start("constant", seed=5)
    other.load(tmp_path)
    assert other.seed == 3
    assert other.events == ["step-000000 was saved with seed 3, not 5: it stays"]


def test_a_model_that_no_run_wrote_leaves_the_seed_alone(tmp_path):
    tensors = [TensorSource.of(name, p.detach()) for name, p in net().named_parameters()]
    state = {"step": 0, "position": 0, "seed": 0, "loss_scale": {}}
    write_checkpoint(tensors, tmp_path, state, 2**30)
    run = start("constant", seed=5)
    run.load(tmp_path)
    assert run.seed == 5 and run.events == []
