"""The facts of ResNets, counted from their stages of convolutions.

A convolution is a product with one row per output pixel. Training in torch keeps, for every
convolution, its output (the batch norm's input) and the normalised, rectified output (the next
convolution's input); rectifying happens in place.
"""

from __future__ import annotations

from dataclasses import dataclass

from .facts import ElementsByType, Facts, Launches, MatmulFacts, MemoryTraffic, Part, SlowKernel

RESNETS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
IMAGE, CLASSES, STEM, EXPANSION, COLOURS = 224, 1000, 64, 4, 3


@dataclass(frozen=True, slots=True)
class Convolution:
    into: int
    out: int
    kernel: int
    size: int  # pixels on a side of what comes out

    @property
    def pixels(self) -> int:
        return self.size * self.size

    @property
    def matrix(self) -> MatmulFacts:
        window = self.into * self.kernel**2
        first = self.into == COLOURS  # nobody asks for the gradient of an image
        return MatmulFacts(self.pixels, window, self.out, "", self.into, 1 if first else 2)

    @property
    def parameters(self) -> int:
        """The weight, and the norm's scale and shift."""
        return self.into * self.kernel**2 * self.out + 2 * self.out

    @property
    def inputs(self) -> int:
        """Of a convolution that keeps the size, as a block's first does."""
        return self.pixels * self.into

    @property
    def outputs(self) -> int:
        return self.pixels * self.out


def facts_of_resnet(name: str) -> Facts:
    """Count a ResNet on images of 224 pixels and 1,000 classes."""
    stages = RESNETS[name]
    parts = [stem_of()]
    into = STEM
    for index, count in enumerate(stages):
        width, size = STEM * 2**index, IMAGE // 4 // 2**index
        first = bottleneck(into, width, size, shrinks=index > 0, projects=True)
        rest = bottleneck(EXPANSION * width, width, size, shrinks=False, projects=False)
        parts += [part_of(f"stage {index + 1}, first", first, 1)]
        parts += [part_of(f"stage {index + 1}", rest, count - 1)] if count > 1 else []
        into = EXPANSION * width
    return Facts(
        name, (*parts, exit_of(into)), tokens=1, vocab=CLASSES, sample_bytes=12.0 * IMAGE**2 + 8
    )


def bottleneck(
    into: int, width: int, size: int, *, shrinks: bool, projects: bool
) -> tuple[Convolution, ...]:
    """A bottleneck block: 1×1, 3×3, 1×1, and a 1×1 shortcut where the size changes."""
    before = size * 2 if shrinks else size
    body = (
        Convolution(into, width, 1, before),
        Convolution(width, width, 3, size),
        Convolution(width, EXPANSION * width, 1, size),
    )
    shortcut = (Convolution(into, EXPANSION * width, 1, size),) if projects else ()
    return body + shortcut


def part_of(name: str, convolutions: tuple[Convolution, ...], count: int) -> Part:
    out = convolutions[2].outputs
    outputs = sum(c.outputs for c in convolutions)
    kept = ElementsByType(
        work=float(outputs + convolutions[0].outputs + convolutions[1].outputs + out)
    )
    # Rectifying reads and writes, the shortcut is added; norms go at their own pace. Backward
    # reads once more, and hands the shortcut's gradient on without moving it.
    fused = ElementsByType(work=3.0 * outputs + 3.0 * out)
    ahead = MemoryTraffic(
        ElementsByType(work=2.0 * outputs + 3.0 * out), fused, slow=norms_of(convolutions, 2.0)
    )
    back = MemoryTraffic(ElementsByType(work=3.0 * outputs), slow=norms_of(convolutions, 3.0))
    return Part(
        name=name,
        parameters=sum(c.parameters for c in convolutions),
        matmuls=tuple(c.matrix for c in convolutions),
        moved=ahead,
        moved_back=back,
        eager=kept,
        compiled=kept,
        selective=ElementsByType(work=float(outputs + convolutions[0].inputs)),
        scratch=ElementsByType(work=2.0 * max(c.outputs for c in convolutions)),
        passing=ElementsByType(work=3.0 * out),
        output=float(out),
        input=ElementsByType(work=float(convolutions[0].inputs)),
        launches=launches(4 * len(convolutions), 3 * len(convolutions)),
        launches_back=launches(4 * len(convolutions), 3 * len(convolutions)),
        tensors=3 * len(convolutions),
        count=count,
    )


def norms_of(convolutions: tuple[Convolution, ...], touched: float) -> tuple[SlowKernel, ...]:
    """The norm behind each convolution, which reads or writes every element so often."""
    return tuple(SlowKernel("channel", touched * c.outputs, c.out) for c in convolutions)


def launches(eager: int, compiled: int) -> Launches:
    """Autocast casts a weight for each convolution, which is one of four or five kernels."""
    return Launches(eager, 1.25 * eager, compiled)


def stem_of() -> Part:
    stem = Convolution(COLOURS, STEM, 7, IMAGE // 2)
    pooled = stem.outputs / 4
    # The convolution's output, the rectified one, the pooled one with its indices. The image is the
    # batch's own in fp32; in fewer bits it is a copy, which these two terms add up to.
    copied = ElementsByType(work=-3.0 * IMAGE**2, single=3.0 * IMAGE**2)
    kept = copied + ElementsByType(work=2.0 * stem.outputs + pooled, other_bytes=8 * pooled)
    return Part(
        name="stem",
        parameters=stem.parameters,
        matmuls=(stem.matrix,),
        moved=MemoryTraffic(
            ElementsByType(work=2.0 * stem.outputs),
            ElementsByType(work=5.0 * stem.outputs),
            slow=(*norms_of((stem,), 2.0), SlowKernel("pool", stem.outputs + 2.0 * pooled)),
        ),
        moved_back=MemoryTraffic(
            ElementsByType(work=3.0 * stem.outputs),
            slow=(*norms_of((stem,), 3.0), SlowKernel("pool", 2.0 * stem.outputs + pooled)),
        ),
        eager=kept,
        compiled=kept,
        selective=kept,
        output=pooled,
        launches=launches(5, 4),
        launches_back=launches(6, 5),
    )


def exit_of(into: int) -> Part:
    kept = ElementsByType(work=float(into))
    return Part(
        name="classifier",
        parameters=into * CLASSES + CLASSES,
        matmuls=(MatmulFacts(1, into, CLASSES),),
        moved=MemoryTraffic(ElementsByType(work=2.0 * into), ElementsByType(work=2.0 * into)),
        eager=kept,
        compiled=kept,
        selective=kept,
        launches=launches(4, 3),
        launches_back=launches(6, 5),
    )
