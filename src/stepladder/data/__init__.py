"""What we feed: sources addressed by position, and the batches of a run made from them.

Sample number p of a run is a function of the source, the seed and p. So the batch of a step is the
same on any number of ranks, a run resumes from one integer, and each sample is seen once per epoch
in a new order.
"""

from .batch import Batch, walk
from .batches import batches, load
from .formats.text_corpus import text_corpus
from .formats.token_files import TokenFile
from .formats.token_shards import TokenShards
from .loading.prefetch import Prefetcher
from .loading.read_samples import Reading
from .loading.workers import Workers
from .open_source import open_source
from .packing import IGNORED
from .sample_order import Order
from .source import Arrays, Source

__all__ = [
    "IGNORED",
    "Arrays",
    "Batch",
    "Order",
    "Prefetcher",
    "Reading",
    "Source",
    "TokenFile",
    "TokenShards",
    "Workers",
    "batches",
    "load",
    "open_source",
    "text_corpus",
    "walk",
]
