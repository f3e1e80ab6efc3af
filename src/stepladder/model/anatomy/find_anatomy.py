"""Finding the anatomy of a module that declares none: the longest list of blocks of one class.

A list is an nn.ModuleList, or consecutive siblings of one class that have submodules. Sibling lists
of one class count as one list (a ResNet's four stages). A list inside one block, such as a layer's
experts, may be longer than the list of layers but has few of the parameters; so only lists with at
least half the parameters of the largest one are compared by length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from torch import nn

from stepladder.model.huggingface.saved_settings import base_model
from stepladder.seam.modules import COMPILED_CHILD, children_of, parameters_of

from .anatomy import Anatomy
from .tensor_cuts import base_layer, declared_cuts, find_cuts

NamedModule = tuple[str, nn.Module]


def find_anatomy(module: nn.Module) -> Anatomy:
    """The anatomy that a module declares, else the one found from its structure."""
    compiled = children_of(module).get(COMPILED_CHILD)
    if compiled is not None:  # torch.compile wraps the module
        return prefixed(find_anatomy(compiled), f"{COMPILED_CHILD}.")
    inner = base_model(module)
    if inner is not module:
        return anatomy_inside_adapters(module, inner)
    declared = getattr(module, "anatomy", None)
    if isinstance(declared, Anatomy):
        return declared
    blocks = find_blocks(module)
    names = tuple(name for name, _ in blocks)
    entry, exit = entry_and_exit(module, names)
    embedding = find_embedding(module, entry)
    head = find_head(module, exit or entry, embedding)
    return Anatomy(
        entry=entry,
        blocks=names,
        exit=exit,
        cuts=common_cuts(module, [block for _, block in blocks]) if blocks else {},
        guessed=bool(blocks) and not declared_cuts(module, blocks[0][1]),
        head=head,
        embedding=embedding,
        tied=is_tied(module, head, embedding),
    )


def common_cuts(module: nn.Module, blocks: list[nn.Module]) -> dict[str, str]:
    """The first block's cuts, without those that other blocks lack, such as an MLP's to experts."""
    cuts, parts = find_cuts(module, blocks[0]), [dict(b.named_modules()) for b in blocks[1:]]
    lacking = {cut.rpartition(".")[0] for cut in cuts for names in parts if cut not in names}
    return {cut: kind for cut, kind in cuts.items() if cut.rpartition(".")[0] not in lacking}


def anatomy_inside_adapters(module: nn.Module, inner: nn.Module) -> Anatomy:
    """The anatomy of the base model; a head with an adapter is no plain linear any more."""
    path = next(name for name, part in module.named_modules() if part is inner)
    found = find_anatomy(inner)
    head = found.part(inner, found.head)
    return prefixed(found if base_layer(head) is head else replace(found, head=None), f"{path}.")


def prefixed(anatomy: Anatomy, prefix: str) -> Anatomy:
    def longer(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(prefix + name for name in names)

    return replace(
        anatomy,
        entry=longer(anatomy.entry),
        blocks=longer(anatomy.blocks),
        exit=longer(anatomy.exit),
        head=anatomy.head and prefix + anatomy.head,
        embedding=anatomy.embedding and prefix + anatomy.embedding,
    )


def find_blocks(module: nn.Module) -> list[NamedModule]:
    lists = [blocks for blocks in lists_of_blocks(module) if not are_experts(module, blocks)]
    candidates = [(num_parameters(blocks), blocks) for blocks in lists]
    fullest = max((size for size, _ in candidates), default=0)
    weighty = [(len(blocks), size, blocks) for size, blocks in candidates if 2 * size >= fullest]
    return max(weighty, key=lambda row: row[:2])[2] if weighty and fullest else []


def are_experts(module: nn.Module, blocks: list[NamedModule]) -> bool:
    """Whether these are experts by their name, or single layers inside an entry of another list:
    some batches may skip them, and a block must run in every batch."""
    if all("expert" in name.rpartition(".")[0].rpartition(".")[2].lower() for name, _ in blocks):
        return True
    if any(has_children(block) for _, block in blocks):
        return False
    return all(is_inside_a_list(module, name.rpartition(".")[0]) for name, _ in blocks)


def is_inside_a_list(module: nn.Module, name: str) -> bool:
    """Whether a part, or one that it is inside of, is an entry of a list of modules."""
    while name:
        outer, _, _ = name.rpartition(".")
        if isinstance(module.get_submodule(outer), nn.ModuleList | nn.Sequential):
            return True
        name = outer
    return False


def lists_of_blocks(module: nn.Module) -> Iterator[list[NamedModule]]:
    """Every candidate: consecutive children of one class, and sibling lists joined."""
    for prefix, part in module.named_modules():
        lists = [run for name, child in children(prefix, part) for run in runs_in(name, child)]
        for _, same in groupby(lists, key=lambda run: type(run[0][1])):
            yield [named for run in same for named in run]
    yield from runs_in("", module)


def runs_in(name: str, part: nn.Module) -> list[list[NamedModule]]:
    parts = [named for named in children(name, part) if is_callable(named[1])]
    runs = [list(run) for _, run in groupby(parts, key=lambda named: type(named[1]))]
    if isinstance(part, nn.ModuleList) and len(runs) == 1:
        return runs
    return [run for run in runs if len(run) > 1 and all(has_parts(block) for _, block in run)]


def is_callable(block: nn.Module) -> bool:
    """Whether a module can be called: a list of modules cannot, so no rung could wrap it."""
    return not isinstance(block, nn.ModuleList | nn.ModuleDict)


def has_parts(block: nn.Module) -> bool:
    return has_children(block) and next(block.parameters(), None) is not None


def has_children(block: nn.Module) -> bool:
    return next(block.children(), None) is not None


def children(prefix: str, part: nn.Module) -> list[NamedModule]:
    return [(f"{prefix}.{name}".lstrip("."), child) for name, child in part.named_children()]


def num_parameters(blocks: list[NamedModule]) -> int:
    unique = {id(p): p.numel() for _, block in blocks for p in block.parameters()}
    return sum(unique.values())


def entry_and_exit(
    module: nn.Module, blocks: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts without blocks, in registration order: before the first block, and after."""
    outside = list(parts_outside(module, "", blocks))
    first = next((index for index, name in enumerate(outside) if name in blocks), len(outside))
    before, after = outside[:first], outside[first:]
    return tuple(before), tuple(name for name in after if name not in blocks)


def parts_outside(module: nn.Module, prefix: str, blocks: tuple[str, ...]) -> Iterator[str]:
    for name, child in children(prefix, module):
        if any(block.startswith(f"{name}.") for block in blocks):
            yield from parts_outside(child, name, blocks)
        else:
            yield name


def find_head(module: nn.Module, exit: tuple[str, ...], embedding: str | None) -> str | None:
    """The linear after the blocks that shares the embedding's matrix, else the last; None if it has
    an adapter."""
    names = [f"{part}.{name}".rstrip(".") for part in exit for name in linear_names(module, part)]
    names += [name for name in names if is_tied(module, name, embedding)]
    return names[-1] if names and not is_adapted(module, names[-1]) else None


def is_adapted(module: nn.Module, name: str) -> bool:
    """Whether a part is inside a layer with adapters."""
    words = name.split(".")
    above = (module.get_submodule(".".join(words[:count])) for count in range(1, len(words)))
    return any(base_layer(part) is not part for part in above)


def linear_names(module: nn.Module, part: str) -> list[str]:
    parts = module.get_submodule(part).named_modules()
    return [name for name, child in parts if isinstance(child, nn.Linear)]


def find_embedding(module: nn.Module, entry: tuple[str, ...]) -> str | None:
    """The first embedding before the blocks."""
    for part in entry:
        for name, child in module.get_submodule(part).named_modules():
            if isinstance(child, nn.Embedding):
                return f"{part}.{name}".rstrip(".")
    return None


def is_tied(module: nn.Module, head: str | None, embedding: str | None) -> bool:
    if head is None or embedding is None:
        return False
    # Not by attribute: a parametrized weight is computed anew, and spectral norm iterates.
    weights = [parameters_of(module.get_submodule(end)).get("weight") for end in (head, embedding)]
    return weights[0] is not None and weights[0] is weights[1]
