"""What is said of a run that goes on."""

from stepladder.train import climb

from .toys import net, pairs


def start(rate, optimizer="sgd lr=0.1"):
    return climb(net(), loss="cross_entropy", optimizer=optimizer, plan="fp32", rate=rate)


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
