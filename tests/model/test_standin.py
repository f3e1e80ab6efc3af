"""Fake tensors in a module's place."""

import torch
from torch import nn

from stepladder.model.standin import Rehearsal, running

torch.set_num_threads(1)


def test_inputs_may_be_one_tensor_a_tuple_or_names():
    net = nn.Bilinear(3, 4, 5)
    rehearsal, left, right = Rehearsal(net), torch.zeros(2, 3), torch.zeros(2, 4)
    with rehearsal.fake:
        assert rehearsal((left, right)).shape == (2, 5)
        assert rehearsal({"input1": left, "input2": right}).shape == (2, 5)
    alone = Rehearsal(nn.Linear(3, 2))
    with alone.fake:
        assert alone(left).shape == (2, 2)


def test_a_module_on_meta_is_watched_as_on_the_cpu():
    class Makes(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) + torch.ones(2)

    with torch.device("meta"):
        rehearsal = Rehearsal(Makes(3, 2))
    with rehearsal.fake:
        assert rehearsal(torch.zeros(4, 3, device="meta")).device.type == "cpu"


def test_another_type_may_be_stood_in():
    rehearsal = Rehearsal(nn.Linear(3, 2), store=torch.bfloat16)
    with rehearsal.fake:
        assert rehearsal(torch.zeros(4, 3)).dtype == torch.bfloat16


def test_the_innermost_part_running_is_known_and_nothing_stays_behind():
    net, seen = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU()), []
    net[0][0].register_forward_hook(lambda *_: seen.append(inside[-1]))
    with running(net, ["0", "1"]) as inside:
        net[1].register_forward_hook(lambda *_: seen.append(inside[-1]))
        net(torch.zeros(1))
        assert inside == [""]
    assert seen[0] == "0"
    assert not net[0]._forward_hooks and not net[0]._forward_pre_hooks
