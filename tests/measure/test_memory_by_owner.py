import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from stepladder.measure import MemoryMeter, measure_memory
from stepladder.measure.memory_by_owner import backward_noticed, is_compiled, reconcile
from stepladder.measure.storage_ledger import Ledger
from stepladder.record import Memory

torch.set_num_threads(1)
CPU = torch.device("cpu")
ROWS, WIDTH, VOCAB = 256, 64, 300


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self, num_blocks: int = 3, again: bool = False, vocab: int = VOCAB) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, vocab)
        self.again = again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


def stepper(model, optimizer, autocast=False, zero=True, rows=ROWS):
    x, y = torch.randn(rows, WIDTH), torch.randint(0, 2, (rows,))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if zero:
            optimizer.zero_grad()

    return step


def size(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("moments", [0, 2])
def test_the_state_is_measured_to_the_byte_and_the_owners_sum_to_the_peak(moments):
    model = Net()
    kind = torch.optim.Adam if moments else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)
    step = stepper(model, optimizer)
    step()
    with MemoryMeter(model, optimizer, CPU) as meter:
        step()
    memory = meter.memory
    assert memory.parameters == size(model.parameters())
    state = [t for s in optimizer.state.values() for t in s.values()]
    assert memory.optimizer == size(state) >= moments * memory.parameters
    assert memory.peak_bytes == meter.ledger.peak_bytes


def test_activations_are_what_forward_keeps():
    model = Net(num_blocks=20)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = measure_memory(stepper(model, sgd), model, sgd, CPU, vocab=VOCAB)
    row = ROWS * WIDTH * 4
    # each block keeps tanh's result and gives its output, which the next one keeps as its input;
    # the first reads the batch, which was there before
    assert memory.activations == pytest.approx(20 * (4 * row + row), rel=0.02)
    assert memory.logits >= ROWS * VOCAB * 4
    assert memory.gradients <= memory.parameters


def test_gradients_that_stay_are_owned_by_gradients():
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = stepper(model, sgd, zero=False)
    step()
    assert measure_memory(step, model, sgd, CPU).gradients == size(model.parameters())


@pytest.mark.parametrize("vocab", [VOCAB, 2])
def test_recomputation_shows_as_fewer_activations(vocab):
    def measured(again):
        model = Net(num_blocks=12, again=again, vocab=vocab)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        step = stepper(model, sgd, rows=8 * ROWS)
        return measure_memory(step, model, sgd, CPU, vocab=vocab).activations

    row = 8 * ROWS * WIDTH * 4
    assert measured(False) == pytest.approx(12 * 5 * row, rel=0.02)
    if vocab == VOCAB:  # the peak is at the head: an input a block, and nothing else
        assert measured(True) == pytest.approx(12 * row, rel=0.02)
    else:  # the peak is in backward: the block it is at stands in full, the last output has gone
        assert measured(True) == pytest.approx(11 * row + 4 * row, rel=0.02)


def test_casts_of_parameters_are_working_copies():
    model = Net(num_blocks=8)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = measure_memory(stepper(model, sgd, autocast=True), model, sgd, CPU)
    half = size(model.parameters()) // 2
    assert half - size(model.head.parameters()) < memory.working <= half


def test_the_peak_is_the_one_that_the_profiler_of_torch_sees():
    model = Net(num_blocks=8)
    adam = torch.optim.Adam(model.parameters())
    step = stepper(model, adam)
    step()
    before = size(model.parameters()) + size(t for s in adam.state.values() for t in s.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = sorted(
        (e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    )
    total = highest = 0
    for event in events:
        total += event.nbytes()
        highest = max(highest, total)
    batch = ROWS * WIDTH * 4 + ROWS * 8
    measured = measure_memory(step, model, adam, CPU).peak_bytes
    assert measured == pytest.approx(before + batch + highest, rel=0.02)


def test_a_forward_alone_has_activations_when_its_end_is_marked():
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(ROWS, WIDTH)
    with MemoryMeter(model, sgd, CPU) as meter:
        kept = model(x)
        meter.after_forward()
    assert kept.requires_grad and meter.memory.activations >= 3 * 4 * ROWS * WIDTH * 4


def test_a_storage_emptied_in_place_is_gone():
    model = Net(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryMeter(model, sgd, CPU) as meter:
        first = torch.ones(2**16)
        first.untyped_storage().resize_(0)
        second = torch.ones(2**16)
    del second
    assert 2**18 <= meter.memory.temporary < 2**19
    assert torch.ones(4).untyped_storage().resize_(0).size() == 0  # left as it was found


def test_memory_that_storages_made_before_are_given_is_counted_while_they_have_it():
    """As FSDP2 gathers: into storages that stay, empty between their uses."""
    device = torch.device("cpu")
    kept = [torch.ones(1000) for _ in range(8)]
    for tensor in kept[1:]:
        tensor.untyped_storage().resize_(0)
    with Ledger(device) as ledger:
        kept[0].untyped_storage().resize_(0)
        for tensor in kept:
            tensor.untyped_storage().resize_(4000)
            tensor.add_(1.0)
            tensor.untyped_storage().resize_(0)
    assert (ledger.peak_bytes, ledger.live_bytes) == (4000, 0)


def test_the_module_and_the_optimizer_are_left_as_they_were():
    model = Net(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    measure_memory(stepper(model, sgd), model, sgd, CPU)
    assert not sgd._optimizer_step_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_what_the_allocator_saw_beyond_the_owners_is_temporary():
    tracked = Memory(parameters=100, activations=50, temporary=5)
    seen = reconcile(tracked, 0, 180, 256, 7)
    assert seen == Memory(parameters=100, activations=50, temporary=30, reserved=76, context=7)
    assert seen.allocated_bytes == 180


def test_owners_that_never_stood_together_give_way_to_the_peak():
    tracked = Memory(parameters=100, gradients=100)
    seen = reconcile(tracked, 90, 250, 256, 0)
    assert seen.activations == 50 and seen.allocated_bytes == 250


def test_the_start_of_backward_is_noticed():
    seen = []
    x = torch.ones(2, requires_grad=True)
    with backward_noticed(lambda: seen.append(x.grad)):
        x.sum().backward()
    x.sum().backward()
    assert seen == [None]


def test_what_was_there_before_counts_at_the_peak_even_if_it_is_read_after_it():
    model = Net(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.ones(2**16)
    with MemoryMeter(model, sgd, CPU) as meter:
        brief = torch.ones(2**18)
        del brief
        before.sum()
    assert meter.memory.temporary == 2**20 + 2**18
    assert meter.memory.peak_bytes == meter.ledger.peak_bytes


def test_gradients_that_no_backward_made_are_gradients_too():
    model = Net(1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert measure_memory(sgd.step, model, sgd, CPU).gradients == size(model.parameters())


def test_a_compiled_module_is_known_by_its_parts():
    model = Net(2)
    assert not is_compiled(model)
    assert is_compiled(torch.compile(model))
    model.blocks[1].compile()
    assert is_compiled(model)
