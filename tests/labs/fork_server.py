"""What the fork server of the labs' tests has loaded: all that lessons and checks import.

It is loaded as a command loads it, out of the collector's sight: a search for garbage in a fork
would walk all of it, and so copy the memory that forks share.
"""

from importlib import import_module

from stepladder.cli.import_torch import loading

with loading():
    for name in (
        "functorch.compile",
        "sklearn.datasets",
        "stepladder.labs.grading.check_words",
        "stepladder.labs.equipment.lab_ranks",
        "stepladder.labs.equipment.layer_stack",
        "stepladder.model",
        "stepladder.measure",
        "stepladder.train",
        "torch._dynamo",  # an optimizer's first step imports it, and that takes a second
        "torch.distributed.checkpoint",
        "torch.distributed.optim",
        "torch.distributed.pipelining",
        "torch.distributed.tensor.parallel",
        "torch.utils.serialization",
    ):
        import_module(name)
