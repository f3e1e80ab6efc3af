"""What we feed: sources addressed by position, and the batches of a run made from them.

Sample number p of a run is a function of the source, the seed and p. So the batch of a step is the
same on any number of ranks, a run resumes from one integer, and each sample is seen once per epoch
in a new order.
"""

from .batch import Batch, walk
from .classics import cifar, digits, mnist
from .corpus import text_corpus
from .feed import batches, load
from .held import Part, Split
from .images import ImageFolder
from .lengths import LengthSchedule
from .mix import Mix
from .open import open_source
from .order import Order
from .pack import IGNORED, pack
from .prefetch import Prefetcher
from .reading import Reading
from .shards import TokenShards
from .source import Arrays, Source
from .tokens import TokenFile
from .workers import Workers

__all__ = [
    "IGNORED",
    "Arrays",
    "Batch",
    "ImageFolder",
    "LengthSchedule",
    "Mix",
    "Order",
    "Part",
    "Prefetcher",
    "Reading",
    "Source",
    "Split",
    "TokenFile",
    "TokenShards",
    "Workers",
    "batches",
    "cifar",
    "digits",
    "load",
    "mnist",
    "open_source",
    "pack",
    "text_corpus",
    "walk",
]
