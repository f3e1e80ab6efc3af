"""The facts of residual convolutional networks, counted from their plan of stages.

A convolution is a product with one row per output pixel. Training in torch keeps, for every
convolution, its output (the batch norm's input) and the normalised, rectified output (the next
convolution's input); rectifying happens in place.
"""

from __future__ import annotations

from dataclasses import dataclass

from .facts import Facts, Kept, Matrix, Moved, Part

RESNETS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
IMAGE, CLASSES, STEM, EXPANSION = 224, 1000, 64, 4


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
    def matrix(self) -> Matrix:
        return Matrix(self.pixels, self.into * self.kernel**2, self.out)

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
    """Narrow, look around, widen; where the size changes the shortcut is a convolution too."""
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
    kept = Kept(work=float(outputs + convolutions[0].outputs + convolutions[1].outputs + out))
    # A norm reads twice and writes, rectifying reads and writes; the shortcut is added.
    moved = Moved(5.0 * outputs + 3.0 * out, 3.0 * outputs + 3.0 * out)
    return Part(
        name=name,
        parameters=sum(c.parameters for c in convolutions),
        matrices=tuple(c.matrix for c in convolutions),
        moved=moved,
        eager=kept,
        compiled=kept,
        selective=Kept(work=float(outputs + convolutions[0].inputs)),
        scratch=Kept(work=2.0 * max(c.outputs for c in convolutions)),
        passing=Kept(work=3.0 * out),
        output=float(out),
        input=Kept(work=float(convolutions[0].inputs)),
        kernels=(4 * len(convolutions), 3 * len(convolutions)),
        count=count,
    )


def stem_of() -> Part:
    stem = Convolution(3, STEM, 7, IMAGE // 2)
    pooled = stem.outputs / 4
    # The convolution's output, the rectified one, the pooled one with its indices. The image is the
    # batch's own in fp32; in fewer bits it is a copy, which these two terms add up to.
    copied = Kept(work=-3.0 * IMAGE**2, single=3.0 * IMAGE**2)
    kept = copied + Kept(work=2.0 * stem.outputs + pooled, other_bytes=8 * pooled)
    return Part(
        name="stem",
        parameters=stem.parameters,
        matrices=(stem.matrix,),
        moved=Moved(7.0 * stem.outputs, 5.0 * stem.outputs),
        eager=kept,
        compiled=kept,
        selective=kept,
        output=pooled,
        kernels=(5, 4),
    )


def exit_of(into: int) -> Part:
    kept = Kept(work=float(into))
    return Part(
        name="classifier",
        parameters=into * CLASSES + CLASSES,
        matrices=(Matrix(1, into, CLASSES),),
        moved=Moved(2.0 * into, 2.0 * into),
        eager=kept,
        compiled=kept,
        selective=kept,
        kernels=(4, 3),
    )
