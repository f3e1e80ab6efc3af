"""Training data: sources of samples addressed by index, and the batches of a run made from them.

Sample number p of a run is a function of the source, the seed and p. So the batch of a step is the
same on any number of ranks, a run resumes from one integer, and each sample is seen once per epoch
in a new order.
"""

from .batch import Batch, iter_tensors
from .batches import batches, load_batch
from .formats.text_corpus import text_corpus
from .formats.token_files import TokenFile
from .formats.token_shards import TokenShards
from .loading.prefetch import Prefetcher
from .loading.read_samples import ReadPolicy
from .loading.workers import Workers
from .open_source import open_source
from .packing import IGNORED
from .sample_order import SampleOrder
from .source import Arrays, Source

__all__ = [
    "IGNORED",
    "Arrays",
    "Batch",
    "Prefetcher",
    "ReadPolicy",
    "SampleOrder",
    "Source",
    "TokenFile",
    "TokenShards",
    "Workers",
    "batches",
    "iter_tensors",
    "load_batch",
    "open_source",
    "text_corpus",
]
