"""A profile as a person reads it."""

from stepladder.record.profile import Profile, ProfileFinding


def test_it_prints_the_step_the_verdict_and_the_findings_largest_cause_first():
    finding = ProfileFinding("data", "a fifth of the step waits for data", "More workers", 1.25)
    profile = Profile(
        plan="bf16",
        device="CPU",
        steps=4,
        step_seconds=4.07,
        plain_seconds=4.0,
        causes={"data": 0.814, "memory_bound": 2.442, "bubble": 0.0},
        bound="memory-bound: 60% of the step",
        findings=(finding,),
    )
    assert str(profile) == (
        "step 4,070.0 ms under the profiler: memory bound 60%, data 20%\n"
        "memory-bound: 60% of the step\n"
        "- a fifth of the step waits for data. More workers (1.25 ×)"
    )
