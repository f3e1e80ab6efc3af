"""Fake tensors in a module's place."""

import torch
from torch import nn

from stepladder.model.tracing.fake_tensors import FakeForward, running_parts

torch.set_num_threads(1)


def test_inputs_may_be_one_tensor_a_tuple_or_names():
    net = nn.Bilinear(3, 4, 5)
    fake_forward, left, right = FakeForward(net), torch.zeros(2, 3), torch.zeros(2, 4)
    with fake_forward.fake:
        assert fake_forward((left, right)).shape == (2, 5)
        assert fake_forward({"input1": left, "input2": right}).shape == (2, 5)
    alone = FakeForward(nn.Linear(3, 2))
    with alone.fake:
        assert alone(left).shape == (2, 2)


def test_a_module_on_meta_is_watched_as_on_the_cpu():
    class Makes(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) + torch.ones(2)

    with torch.device("meta"):
        fake_forward = FakeForward(Makes(3, 2))
    with fake_forward.fake:
        assert fake_forward(torch.zeros(4, 3, device="meta")).device.type == "cpu"


def test_another_type_may_be_stood_in():
    fake_forward = FakeForward(nn.Linear(3, 2), store=torch.bfloat16)
    with fake_forward.fake:
        assert fake_forward(torch.zeros(4, 3)).dtype == torch.bfloat16


def test_grouped_matmuls_have_fake_tensors_in_every_type():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 16, 32))

        def forward(self, rows, ends):
            return torch.nn.functional.grouped_mm(rows, self.weight, offs=ends)

    net, ends = Experts(), torch.tensor([2, 5, 8], dtype=torch.int32)
    rows = torch.ones(8, 16, requires_grad=True)
    real = net(rows, ends)
    real.square().sum().backward()
    fake_forward = FakeForward(net)
    with fake_forward.fake, torch.enable_grad():
        states, fake_inputs = fake_forward.states(), fake_forward.to_fake(rows).requires_grad_()
        answer = fake_forward.run((fake_inputs, fake_forward.to_fake(ends)), states)
        answer.square().sum().backward()
    assert (answer.shape, answer.dtype) == (real.shape, real.dtype) == ((8, 32), torch.float32)
    assert states["weight"].grad.shape == net.weight.grad.shape
    assert fake_inputs.grad.shape == rows.grad.shape


def test_the_innermost_part_running_is_known_and_nothing_stays_behind():
    net, seen = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU()), []
    net[0][0].register_forward_hook(lambda *_: seen.append(inside[-1]))
    with running_parts(net, ["0", "1"]) as inside:
        net[1].register_forward_hook(lambda *_: seen.append(inside[-1]))
        net(torch.zeros(1))
        assert inside == [""]
    assert seen[0] == "0"
    assert not net[0]._forward_hooks and not net[0]._forward_pre_hooks
