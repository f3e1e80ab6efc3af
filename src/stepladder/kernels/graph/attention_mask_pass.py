"""Pass: attention whose mask hides the future, or nothing, is called without the mask.

Many modules make a mask of the sizes alone and hand it to `scaled_dot_product_attention`; Hugging
Face's decoders do under torch.compile, where their eager form leaves it out. Given a mask, torch
can use neither flash attention nor cuDNN's. Here the mask is computed while the graph is compiled,
and where it is exactly the causal one, attention is told `is_causal`; where it hides nothing, the
mask is left out. A mask that reads an input, as one for padding does, stays.

Without a mask, keys and values that were repeated for grouped queries need not be: attention reads
each once for its group (`enable_gqa`), where a kernel of 16 bits does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from .constant_values import Values, name_of, walk
from .graph_pass import KernelPass, recognising

ATTENTION = functional.scaled_dot_product_attention
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
HIDDEN = torch.finfo(torch.float16).min  # added to a score, this or less leaves it no weight
HALF = (torch.bfloat16, torch.float16)

Arguments = dict[str, Any]


class AttentionMaskPass(KernelPass):
    """Run by Inductor on the graph of the module's own calls, before autograd."""

    def __call__(self, graph: fx.Graph) -> None:
        if any(attends(each) for each in every_graph(graph)):
            change(graph, {})


def every_graph(graph: fx.Graph) -> Iterator[fx.Graph]:
    """A graph and those it calls, as for blocks whose activations are recomputed."""
    yield graph
    for node in graph.nodes:
        for body in bodies_of(node) or ():
            yield from every_graph(body.graph)


def attends(graph: fx.Graph) -> bool:
    return any(node.target is ATTENTION for node in graph.nodes)


@recognising
def change(graph: fx.Graph, inputs: Values) -> None:
    found: list[tuple[fx.Node, Arguments]] = []
    for node, values in walk(graph, inputs):
        if node.target is ATTENTION and (arguments := lighter_arguments(node, values)):
            found.append((node, arguments))
        for body in bodies_of(node) or ():
            change(body.graph, passed_to(node, body, values) or {})
    for node, arguments in found:
        node.args, node.kwargs = (), arguments


@recognising
def lighter_arguments(node: fx.Node, values: Values) -> Arguments | None:
    """An attention's arguments for the same result by less work; None where none are known."""
    arguments = {**dict(zip(NAMES, node.args, strict=False)), **node.kwargs}
    if arguments.get("attn_mask") is None:
        return share_keys(arguments)
    plain = leave_out_mask(arguments, values)
    return plain and (share_keys(plain) or plain)


def leave_out_mask(arguments: Arguments, values: Values) -> Arguments | None:
    mask = values.get(arguments["attn_mask"])
    if type(mask) is not Tensor or arguments.get("is_causal"):
        return None
    visible = mask if mask.dtype == torch.bool else visible_scores(mask)
    if visible is None:
        return None
    if visible.all():
        return {**arguments, "attn_mask": None}
    rows, columns = (arguments[each].meta["example_value"].shape[-2] for each in ("query", "key"))
    if not isinstance(rows, int) or not rows == columns == visible.shape[-1] == visible.shape[-2]:
        return None
    past = torch.ones(rows, columns, dtype=torch.bool).tril()
    return {**arguments, "attn_mask": None, "is_causal": True} if (visible == past).all() else None


def visible_scores(added: Tensor) -> Tensor | None:
    """Where an added mask lets a score through; None where it does more than hide some."""
    visible = added == 0
    return visible if (visible | (added <= HIDDEN)).all() else None


@recognising
def share_keys(arguments: Arguments) -> Arguments | None:
    """The arguments with keys and values as they were before they were repeated for a group."""
    query: Any = arguments["query"].meta["example_value"]
    if arguments.get("enable_gqa") or not reads_keys_once(query):
        return None
    key, value = (before_repeating(arguments[each]) for each in ("key", "value"))
    if key is None or value is None:
        return None
    heads = [each.meta["example_value"].shape[1] for each in (key, value)]
    if heads[0] != heads[1] or query.shape[1] % heads[0]:
        return None
    return {**arguments, "key": key, "value": value, "enable_gqa": True}


def reads_keys_once(query: Tensor) -> bool:
    """Whether attention has a kernel for groups; its other forms repeat the keys themselves."""
    return query.is_cuda and (query.dtype in HALF or torch.is_autocast_enabled("cuda"))


@recognising
def before_repeating(node: fx.Node) -> Any:
    """What (batch, heads, length, width) was before each head was repeated; else None."""
    last: Any = node
    shape = tuple(last.meta["example_value"].shape)
    if name_of(last) == "repeat_interleave":
        given: list[Any] = [*last.args, *last.kwargs.values()]
        single = isinstance(given[1], int) and given[2:] in ([1], [-3])
        return given[0] if single and len(shape) == 4 else None
    expanded = last.args[0]
    if name_of(last) not in ("reshape", "view", "flatten") or name_of(expanded) != "expand":
        return None
    opened = expanded.args[0]
    source, index = opened.args
    axis = {"getitem": (slice(None), slice(None), None), "unsqueeze": 2}.get(name_of(opened))
    heads_first = index[:3] == axis if isinstance(index, tuple) else index == axis
    rest_whole = not isinstance(index, tuple) or is_whole(index[3:])
    batch, heads, length, width = source.meta["example_value"].shape
    times = expanded.meta["example_value"].shape[2]
    repeated = shape == (batch, heads * times, length, width)
    return source if heads_first and rest_whole and repeated else None


def is_whole(index: tuple[Any, ...]) -> bool:
    return all(each == slice(None) for each in index)


@recognising
def bodies_of(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a call runs with its other arguments, as torch's checkpoint does."""
    owner = node.graph.owning_module
    given = [each for each in node.args if isinstance(each, fx.Node) and each.op == "get_attr"]
    found = [getattr(owner, str(each.target)) for each in given if len(each.users) == 1]
    return [each for each in found if isinstance(each, fx.GraphModule)]


@recognising
def passed_to(node: fx.Node, body: fx.GraphModule, values: Values) -> Values:
    """The constants among a body's inputs: the arguments after the body, in order."""
    places = [each for each in body.graph.nodes if each.op == "placeholder"]
    given = node.args[len(node.args) - len(places) :]
    pairs = zip(places, given, strict=True)
    return {
        place: values[each] for place, each in pairs if isinstance(each, fx.Node) and each in values
    }
