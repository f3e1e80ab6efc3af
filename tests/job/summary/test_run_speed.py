"""What a long run keeps at hand stays small, and still begins and ends where the run did."""

from stepladder.job.summary.run_speed import thin


def test_a_list_that_grows_for_ever_is_thinned():
    kept = []
    for step in range(100_000):
        kept.append(step)
        thin(kept, most=100)
        assert len(kept) <= 100 and kept[0] == 0 and kept[-1] == step
    assert kept == sorted(set(kept))
