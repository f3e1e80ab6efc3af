"""What the tables of loss curves conclude: only what the seeds agree on."""

from stepladder.bench.loss_curves.compression_curves import CompressionCase, CompressionCurve
from stepladder.bench.loss_curves.learning_rates import RateCase, RateCurve
from stepladder.cli.results.bench_tables.curve_tables import (
    best_rule,
    by_case,
    feedback_verdict,
    show_compression,
    show_rates,
    spread,
)


def rates(finals):
    """By rule and warm-up, the last losses of the seeds."""
    rows = [
        RateCurve(RateCase("sgd lr=0.1", 4 if rule == "base" else 32, 4, rule, warmup), seed,
                  (5.0, final or 9.0), final, "" if final else "diverged in step 2")
        for (rule, warmup), some in finals.items()
        for seed, final in enumerate(some)
    ]  # fmt: skip
    return by_case(rows)


def compressed(fed, lossy):
    cases = [CompressionCase("powersgd:1"), CompressionCase("powersgd:1", error_feedback=False)]
    rows = [CompressionCurve(CompressionCase("none"), seed, (5.0, 2.0), 4096, 2.0)
            for seed in range(len(fed))]  # fmt: skip
    for case, some in zip(cases, (fed, lossy)):
        rows += [CompressionCurve(case, seed, (5.0, 2.0), 1024, final, "" if final else "diverged")
                 for seed, final in enumerate(some)]  # fmt: skip
    return by_case(rows)


def test_the_best_rule_is_that_of_the_lowest_mean_and_warm_up_is_counted():
    grouped = rates({
        ("base", 0): (2.0, 2.0), ("none", 0): (3.0, 3.0), ("none", 6): (3.5, 3.5),
        ("linear", 0): (2.4, 2.6), ("linear", 6): (2.3, 3.0),
    })  # fmt: skip
    assert best_rule(grouped) == (
        "sgd lr=0.1: of batch 32, linear ends lowest, +0.500 over the base batch; it is lowest in "
        "1 of 2 seeds. Warm-up lowered the last loss in 1 of 4 trainings."
    )


def test_a_rule_that_breaks_off_in_one_seed_is_not_the_best(capsys):
    grouped = rates({
        ("base", 0): (2.0, 2.0), ("none", 0): (3.0, 3.0), ("none", 6): (2.9, 3.1),
        ("linear", 0): (2.1, None), ("linear", 6): (3.4, 3.6),
    })  # fmt: skip
    assert "none ends lowest" in best_rule(grouped)
    assert "lowered the last loss in 2 of 4 trainings" in best_rule(grouped)
    show_rates("Rates", grouped)
    shown = capsys.readouterr().out
    assert "diverged in step 2" in shown and "+1.500 (+1.400 to +1.600)" in shown


def test_without_a_base_there_is_nothing_to_compare_with():
    said = best_rule(rates({("base", 0): (None,), ("none", 0): (3.0,)}))
    assert said == "sgd lr=0.1: too high a rate to compare; lower it with --optimizer."


def test_error_feedback_is_judged_only_where_the_seeds_agree(capsys):
    grouped = compressed((2.1, 2.2), (2.3, 2.3))
    said = (
        "powersgd:1: without error feedback the last loss is 0.150 higher on average, "
        "higher in 2 of 2 seeds."
    )
    assert feedback_verdict(grouped[2], grouped) == said
    show_compression("Compressed", grouped)
    shown = capsys.readouterr().out
    assert said in shown and "+0.300 (+0.300 to +0.300)" in shown and "off" in shown
    parted = compressed((2.1, 2.4), (2.3, 2.3))
    assert feedback_verdict(parted[2], parted).endswith("they disagree, so no difference is shown.")
    broken = compressed((2.1, 2.4), (2.3, None))
    assert "cannot be judged" in feedback_verdict(broken[2], broken)


def test_one_seed_has_no_spread():
    assert spread([0.1]) == "+0.100" and spread([0.1, 0.3]) == "+0.200 (+0.100 to +0.300)"
    assert spread(None) == "" and spread([-1e-5]) == "0.000"
