"""An exponential moving average (EMA) of a run's weights, on every rung.

Each rank averages what its own optimizer updates: whole parameters, or its slices of them. The
average works element by element, so it needs no communication, and an update is a few kernels that
nobody waits for. Weights in 16 bits are averaged in float32, from their masters where the optimizer
keeps them: in 16 bits a share of 0.001 would be rounded away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stepladder.checkpoint.reader import copy_values
from stepladder.errors import PlanError, TrainingError
from stepladder.rungs import ParameterShard
from stepladder.rungs.data_parallel.buffer_copies import whole_buffers
from stepladder.rungs.parameter_shards import real, reshard
from stepladder.seam.operators import foreach_lerp_
from stepladder.train.optimizer.compact.compact_adam import master_of
from stepladder.train.run import Run
from stepladder.world import synchronize

Decay = float | Callable[[int], float]


class EMA:
    """An exponential moving average of a run's weights, which starts as the weights are now.

    Call `update` after each step, before the run is saved. `with ema.applied():` evaluates,
    predicts or saves with the averages. They are saved and restored with the run, in any layout:
    create the EMA before `run.resume`.

    Args:
        decay: the share of the average that an update keeps; the rest comes from the weights. A
            function of the number of updates so far changes it: `lambda updates: updates /
            (updates + 1)` weighs all updates equally, as stochastic weight averaging (SWA) does.
        warmup: keep at most (1 + updates) / (10 + updates), so that the first weights fade sooner.
        buffers: average floating-point buffers too, such as the statistics of BatchNorm; else
            `applied` leaves them as the run has them, as it does all other buffers.
        name: in checkpoints; a second EMA of a run needs another.

    >>> import torch, stepladder as sl
    >>> from stepladder.train import EMA
    >>> run = sl.climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan="fp32", device="cpu")
    >>> ema = EMA(run, decay=0.99)
    >>> batch = torch.randn(8, 4), torch.randint(0, 2, (8,))
    >>> for report in sl.fit(run, [batch] * 3):
    ...     ema.update()
    >>> with ema.applied():
    ...     loss = run.evaluate([batch])
    >>> ema.updates
    3
    """

    def __init__(
        self,
        run: Run,
        decay: Decay = 0.999,
        *,
        warmup: bool = False,
        buffers: bool = True,
        name: str = "ema",
    ) -> None:
        if not hasattr(run, "climbed"):
            problem = f"was given a {type(run).__name__}, and averages the weights of a run"
            raise PlanError("ema", problem, "Give it what climb returned.")
        if not callable(decay):
            check_decay(decay)
        self.run, self.decay, self.warmup, self.use_buffers = run, decay, warmup, buffers
        self.updates = 0
        self.averages: dict[str, Tensor] = {}  # of parameters, by name
        self.buffers: dict[str, Tensor] = {}  # averages of them, by name
        self.is_applied = False
        self.restart()
        run.register_for_checkpointing(name, self)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights; does not wait for the device."""
        self.run.check_weights("update")
        self.run.hold()  # a save in the background may still be copying the averages
        share = 1 - self.decay_now()
        shards = self.run.climbed.shards
        pairs = [(real(self.averages[s.name]), real(self._weights(s))) for s in shards]
        alike = [(mean, now) for mean, now in pairs if mean.dtype == now.dtype]
        foreach_lerp_([mean for mean, _ in alike], [now for _, now in alike], share)
        for mean, now in pairs:
            if mean.dtype != now.dtype:
                mean.lerp_(now.to(mean.dtype), share)
        for name, now in self._own_buffers().items():
            move_statistics(real(self.buffers[name]), real(now), share)
        self.updates += 1

    def decay_now(self) -> float:
        """The decay of the next update."""
        decay = self.decay(self.updates) if callable(self.decay) else self.decay
        check_decay(decay)
        return min(decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else decay

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A block in which the run's weights are the averages; every rank enters it.

        Afterwards the run has its own weights again, to the bit.
        """
        if self.is_applied:
            raise TrainingError("ema", "applied() was called inside its own block", "Leave it out.")
        run, self.is_applied = self.run, True
        run.look_back()  # mends statistics that are not finite, before they are put away
        trained = {s.name: s.owned.detach().clone() for s in run.climbed.shards}
        own = {name: buffer.detach().clone() for name, buffer in self._own_buffers().items()}
        self._put(self.averages, self.buffers)
        run.averaged += 1
        try:
            yield
        finally:
            run.averaged -= 1
            self._put(trained, own)
            run.look_back()  # what counts as sound is no average
            self.is_applied = False

    def restart(self) -> None:
        """Start from the run's weights as they are now."""
        shards, buffers = self.run.climbed.shards, self._own_buffers()
        self.averages = {s.name: widened(self._weights(s)) for s in shards}
        self.buffers = {name: widened(buffer) for name, buffer in buffers.items()}
        self.updates = 0

    def tensors(self) -> Mapping[str, Tensor]:
        """The averages by the name of the parameter or buffer, as this rank has them."""
        return {**self.averages, **self.buffers}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.updates = state_dict["updates"]

    def _weights(self, shard: ParameterShard) -> Tensor:
        """What this rank's optimizer updates of a parameter, in the most digits it keeps."""
        return master_of(self.run.optimizer, shard.owned).detach()

    def _own_buffers(self) -> dict[str, Tensor]:
        """The run's buffers that are averaged."""
        named = whole_buffers(self.run.climbed.state) if self.use_buffers else ()
        return {n: b.detach() for n, b in named if b.is_floating_point() or b.is_complex()}

    def _put(self, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Have the run compute with these weights and buffers."""
        self.run.hold()
        synchronize(self.run.world.device)  # offloaded weights may be on their way to the device
        reshard(self.run.module)  # else the next pass would use what an evaluation gathered
        for shard in self.run.climbed.shards:
            copy_values(weights[shard.name], shard.owned.detach())
        for name, buffer in self._own_buffers().items():
            copy_values(buffers[name], buffer)
        with self.run.world.explain_hangs():
            self.run.climbed.publish()


def check_decay(decay: Any) -> None:
    if not isinstance(decay, int | float) or not 0 <= decay <= 1:
        problem = f"{decay!r} is not a share of the average to keep"
        raise PlanError("decay", problem, "Use a number between 0 and 1, such as 0.999.")


def widened(tensor: Tensor) -> Tensor:
    """A copy in which small changes are not rounded away."""
    narrow = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.detach().to(torch.float32 if narrow else tensor.dtype, copy=True)


def move_statistics(mean: Tensor, now: Tensor, share: float) -> None:
    """Move an averaged buffer where the buffer is finite.

    One bad batch makes running statistics NaN until they are mended, and an average would stay so.
    """
    moved = mean.lerp(now.to(mean.dtype), share)
    mean.copy_(torch.where(now.isfinite(), moved, mean))
