"""Capstone: a 70B on 64 GPUs, planned, defended and simulated.

Llama 3 70B is to train with sequences of 8,192 in batches of 512, on 64 H100-80GB. You hand in a
plan, what each GPU will hold, why four other plans lose, and how long the run takes if nodes fail.

    stepladder plan llama3-70b --sequence 8192 --on "64 x H100-80GB" --plan "YOUR PLAN"

forecasts one; words of a plan are on the page docs/words.md. A plan that the search finds may be
handed in, but find it by hand first: who owns the memory, what frees it, what does that cost?

Claim: your plan fits, keeps the batch of 512, and is at most 5 % slower than the best that the
search finds; the bytes of its state are those of the planner; each rival loses for the reason you
give; and the run with its failures takes as long as you say.

Predict: How many days does the run take on a trillion tokens, with one failure a day, as the last
row has it? [days; failures = one a day]

Often wrong:
- DDP, because 70 GB of weights nearly fit
- the batch is meant for each GPU
- one sequence at a time, though two fit
- a plan that does not fit is taken for its speed
- another cluster is planned for
- gradients are forgotten in the state
- a plan that does not fit is called slow
- what was not saved yet is not made again
"""

from __future__ import annotations

import stepladder as sl

MODEL, SEQUENCE, CLUSTER, BATCH = "llama3-70b", 8192, "64 x H100-80GB", 512
FACTS = sl.describe(MODEL, sequence=SEQUENCE)
GIB, DAY, TOKENS = 2**30, 86_400, 1e12

# >>> The plan that you hand in, in the words of `stepladder plan --plan`.
# ??? 16 bytes a parameter, for 70 billion of them: what is that on each of 64 GPUs, and what if
# ???   every GPU kept all of it?
# ??? What is left for activations and logits? Look at their owners in the forecast with and without
# ???   recompute=blocks.
# ??? Of the micro-batches that fit, which makes most of the matrix units?
PLAN = "bf16 zero3 shard=64 micro=2 batch=512 recompute=blocks compile=on"
# <<< PLAN = "bf16 ddp micro=1 batch=512"


def state_gib(parameters: float, num_devices: int) -> dict[str, float]:
    """What a GPU keeps from step to step under ZeRO 3, by owner."""
    # >>> GiB of parameters, gradients and optimizer on one of the GPUs, with AdamW in mixed
    # >>> precision.
    # ??? All are kept in float32, and AdamW keeps two moments.
    # ??? ZeRO 3 divides which of the three?
    each = 4 * parameters / num_devices / GIB
    return {"parameters": each, "gradients": each, "optimizer": 2 * each}
    # <<< return {"parameters": 2 * parameters / GIB}


RIVALS = {
    "bf16 zero3 shard=64 micro=4 batch=512 recompute=blocks": "",
    "bf16 zero3 shard=64 micro=1 batch=512 recompute=selective": "",
    "bf16 zero3 shard=8 tensor=8 micro=2 batch=512 recompute=selective": "",
    "bf16 zero1 pipeline=8 tensor=8 micro=1 batch=512 recompute=selective": "",
}  # each loses by "memory" or by "time"


def defend() -> dict[str, str]:
    """Why each rival loses."""
    # >>> Give each rival its reason: "memory" where it does not fit, "time" where it is slower.
    # ??? Whose activations stay, and how many sequences are in flight at a time?
    # ??? A forecast has a field that says whether a plan fits.
    return {plan: "time" if sl.forecast(FACTS, plan, CLUSTER).fits else "memory" for plan in RIVALS}
    # <<< return {plan: "time" for plan in RIVALS}


def simulate(
    steps: int, step_seconds: float, every: int, restart: float, fail_at: list[int]
) -> float:
    """Seconds of a run that fails right after it has made each of these steps for the first time.

    It saves after every so many steps, which costs nothing, and a restart takes its own seconds.
    """
    # >>> Add up what is trained, what is trained again, and the restarts.
    # ??? A failure after step 47, saved after 40: which steps are made a second time?
    # ??? The remainder of a division says how many.
    again = sum(step % every for step in fail_at)
    return (steps + again) * step_seconds + len(fail_at) * restart
    # <<< return steps * step_seconds


def measure() -> list[dict[str, float | str]]:
    found = sl.forecast(FACTS, PLAN, CLUSTER)
    assert found.time is not None, "an H100's speed is known"
    seconds, steps = found.time.step_seconds, round(TOKENS / found.tokens_per_step)
    rows: list[dict[str, float | str]] = []
    for name, between in (("none", None), ("one a day", DAY)):
        fail_at = list(range(0, steps, round(between / seconds)))[1:] if between else []
        days = simulate(steps, seconds, 50, 600.0, fail_at) / DAY
        peak = found.memory.peak_bytes / GIB
        rows.append({"failures": name, "GiB": peak, "step s": seconds, "days": days})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
