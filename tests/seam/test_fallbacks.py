"""Without a private name: the public fallback computes the same, or the one feature is refused."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from stepladder.errors import UnsupportedTorch
from stepladder.kernels.graph.compile import pass_options
from stepladder.model import describe
from stepladder.model.tracing.count_flops import count_flops
from stepladder.rungs.memory.offload_activations import Offload
from stepladder.seam import (
    cuda,
    data_loader,
    dispatch,
    inductor,
    modules,
    operators,
    process_groups,
    pytree,
    sharding,
    storages,
)
from stepladder.seam.elastic_agent import ElasticAgent

Pair = namedtuple("Pair", "first second")
TREES = (
    7,
    None,
    [1, (2, {"b": 3, "a": [4]}), Pair(5, [6])],
    {"x": None, "y": (), "z": OrderedDict(a=1)},
)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_nested_containers_are_walked_as_torch_walks_them(tree, without):
    mapped, leaves = _pytree.tree_map(str, tree), _pytree.tree_leaves(tree)
    without(pytree.MAP, pytree.LEAVES)
    assert pytree.tree_map(str, tree) == mapped
    assert pytree.tree_leaves(tree) == leaves


def test_averages_are_the_same_tensor_by_tensor(without):
    means, ends = ([torch.randn(3, 4), torch.randn(5), torch.randn(0)] for _ in range(2))
    together = [mean.clone() for mean in means]
    operators.foreach_lerp_(together, ends, 0.3)
    operators.foreach_lerp_([], [], 0.3)
    without(operators.LERP)
    operators.foreach_lerp_(means, ends, 0.3)
    torch.testing.assert_close(together, means)


def test_norms_and_quotients_are_the_same_tensor_by_tensor(without):
    tensors = [torch.randn(3, 4), torch.randn(5).bfloat16()]
    norms = operators.foreach_norm(tensors, dtype=torch.float32)
    divided = [tensor.clone() for tensor in tensors]
    operators.foreach_divide_(divided, torch.tensor(3.0))
    without(operators.NORM, operators.DIVIDE)
    torch.testing.assert_close(operators.foreach_norm(tensors, dtype=torch.float32), norms)
    operators.foreach_divide_(tensors, torch.tensor(3.0))
    torch.testing.assert_close(tensors, divided)


def test_an_operator_that_torch_lacks_is_never_met(without):
    without("torch.ops.aten._to_copy")
    found = operators.Operators({"aten._to_copy": 1, "aten.mm": 2, "aten.never_was": 3})
    assert found[torch.ops.aten.mm] == 2
    assert torch.ops.aten._to_copy not in found and torch.ops.aten.add not in found


def test_an_overload_is_asked_for_by_its_name():
    found = operators.Operators(("aten.mm.default", "aten.mm.never_was"))
    assert torch.ops.aten.mm.default in found
    assert torch.ops.aten.mm.out not in found and torch.ops.aten.mm not in found


def test_a_storage_is_known_by_its_python_object(without):
    tensor = torch.zeros(4)
    without(storages.ADDRESS)
    same, other = tensor[2:].untyped_storage(), torch.zeros(4).untyped_storage()
    assert storages.storage_id(same) == storages.storage_id(tensor.untyped_storage())
    assert storages.storage_id(same) != storages.storage_id(other)


def test_operators_without_a_schema_say_less():
    class Bare:
        def __init__(self, name):
            self.name = lambda: name

    assert dispatch.argument_names(Bare("aten::add_.Tensor")) == []
    assert dispatch.writes_in_place(Bare("aten::add_.Tensor"))
    assert not dispatch.writes_in_place(Bare("aten::add.Tensor"))
    assert dispatch.writes_in_place(torch.ops.aten.add_.Tensor)
    assert dispatch.argument_names(torch.ops.aten.mm.default) == ["self", "mat2"]
    assert dispatch.operator_name(torch.ops.aten.add_.Tensor) == "add_"


def test_counting_is_refused_where_operations_cannot_be_watched(without):
    net = nn.Linear(2, 2)
    assert count_flops(net, torch.ones(1, 2)).forward == 8
    without(dispatch.MODE)
    with pytest.raises(UnsupportedTorch, match="which counting operations .* needs"):
        count_flops(net, torch.ones(1, 2))


def test_a_module_is_described_by_running_it_where_there_are_no_fake_tensors(without):
    net, rows = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), torch.ones(4, 2)
    forecast = describe(net, sample=rows)
    without(dispatch.FAKE)
    with pytest.raises(UnsupportedTorch, match="which describing a module without running it"):
        describe(net, sample=rows)
    assert describe(net, sample=rows, probe=True).parameters == forecast.parameters


def test_modules_are_compiled_without_our_passes(without):
    assert set(pass_options()) > {"pre_grad_custom_pass"}
    without(inductor.PASS)
    assert pass_options() == {}


def test_convolutions_run_unfolded(without):
    conv = nn.Conv2d(3, 8, 3)
    assert modules.convolves_plainly(conv)
    without(modules.CONVOLVE)
    assert not modules.convolves_plainly(conv)


def test_a_history_of_allocations_is_left_out(without):
    assert cuda.records_allocations()
    without(cuda.SNAPSHOT)
    assert not cuda.records_allocations()


def test_groups_without_counts_and_records_are_silent(without):
    without(*process_groups.RECORDERS.values(), process_groups.WORLD, process_groups.TIMEOUT)
    without(*(path for path, _ in process_groups.CACHES), process_groups.LOG, data_loader.END)
    assert process_groups.flight_recorder("gloo") is None
    assert process_groups.groups_of_this_rank() == []
    assert process_groups.timings(None) == {}
    process_groups.clear_mesh_caches()
    data_loader.end_workers(None)


@pytest.mark.parametrize(
    ("path", "call", "feature"),
    [
        (dispatch.TASK, dispatch.in_backward, "measuring memory by owner"),
        (operators.SCALED, lambda: operators.scaled_mm(None, None), "fp8"),
        (operators.WAIT, operators.look_up_collectives, "context parallelism"),
        (cuda.SLEEP, lambda: cuda.sleep_on_device(1), "timing kernels"),
        (storages.VERSION, lambda: storages.version_of(torch.ones(1)), "offload=activations"),
        (process_groups.STORE, process_groups.default_store, "several ranks"),
        (sharding.FLATTEN, lambda: sharding.flatten(None, "x"), "a layout that joins axes"),
        (sharding.JOIN, lambda: sharding.join([]), "a layout that joins axes"),
        (sharding.STRIDED, lambda: sharding.strided_shard(0, 3), "fused queries, keys and values"),
        (sharding.OFFSET, lambda: sharding.local_slice(None, []), "saving sharded parameters"),
        (
            sharding.REPLICATE,
            lambda: sharding.replicate_by_blocks([], None, None, set()),
            "replicate with tensor",
        ),
        (
            process_groups.BUCKETS,
            lambda: process_groups.sort_buckets(None),
            "ddp, to resume exactly,",
        ),
    ],
)
def test_the_feature_that_needs_a_name_is_refused(path, call, feature, without):
    without(path)
    with pytest.raises(UnsupportedTorch, match=f"has no .*{path.rpartition('.')[2]}, .*{feature}"):
        call()


def test_an_agent_that_torch_would_not_call_is_refused(without):
    without(
        "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent._shutdown"
    )
    with pytest.raises(UnsupportedTorch, match="launching several ranks needs"):
        ElasticAgent(None, None)


def test_offloading_refuses_by_name_in_the_forward_pass(without):
    tensor = torch.ones(4, requires_grad=True)
    without(storages.VERSION)
    with pytest.raises(UnsupportedTorch), Offload(torch.device("cpu"), [], smallest_bytes=1):
        (tensor * 2).square()
