"""The planner page's form: from the texts of its fields to a model, a cluster, a plan and commands.

Nothing is checked here. A text becomes a word of the command that the page shows, and those who
read the words of commands say what is wrong with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields

from stepladder.errors import PlanError, nearest
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.workload import find_shape
from stepladder.workload.convnet import RESNETS

OWN = "own"  # the model of which the form holds the numbers
NUMBERS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
BUILT_IN_RESNETS = ("resnet50",)  # those that are not only planned
DEFAULTS = {"recompute": "none", "schedule": "1f1b", "offload": "none", "compile": "off"}


@dataclass(frozen=True, slots=True)
class PlannerForm:
    """What the fields hold, as it was typed."""

    model: str = "llama3-8b"
    family: str = "llama"  # from here on: the numbers of a model of one's own
    layers: str = "32"
    hidden: str = "4096"
    heads: str = "32"
    kv_heads: str = "8"
    ffn: str = "14336"
    vocab: str = "128256"
    device: str = "H100-80GB"
    per_node: str = "8"
    nodes: str = "1"
    links: str = ""  # what else is said of the cluster, such as "400 Gb/s per GPU" or "500 W"
    price: str = ""  # of one device and hour; empty: the table's
    sequence: str = "8192"
    batch: str = "64"
    tokens: str = "1e9"
    precision: str = "bf16"
    data: str = "zero3"
    copies: str = "1"  # of the sharded state: hybrid sharding
    tensor: str = "1"
    pipeline: str = "1"
    context: str = "1"
    accumulate: str = "8"
    recompute: str = "blocks"
    schedule: str = "1f1b"
    offload: str = "none"
    compile: str = "on"
    kernels: str = "off"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> PlannerForm:
        """The form that these texts fill in; what they leave out is as the page begins."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise PlanError(name, "is not a field of the page", nearest(name, known))
        return cls(**{name: text.strip() for name, text in given.items()})

    @property
    def reads_sequences(self) -> bool:
        return self.model not in RESNETS

    @property
    def model_text(self) -> str:
        if self.model != OWN:
            return self.model
        numbers = [f"{name}={getattr(self, name)}" for name in (*NUMBERS, "sequence")]
        return f"{self.family}:{','.join(numbers)}"

    @property
    def cluster_text(self) -> str:
        node = "node" if self.nodes == "1" else "nodes"
        devices = f"{self.nodes} {node} x {self.per_node} {self.device}"
        return f"{devices}, {self.links}" if self.links else devices

    @property
    def plan_text(self) -> str:
        axes = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context}
        if self.data != "ddp":
            axes["replicate"] = self.copies
        words = [self.precision, self.data]
        words += [f"{axis}={ways}" for axis, ways in axes.items() if ways != "1"]
        words += [f"batch={self.batch}", f"accumulate={self.accumulate}"]
        for name, default in DEFAULTS.items():
            if getattr(self, name) != default and (name != "schedule" or self.pipeline != "1"):
                words.append(f"{name}={getattr(self, name)}")
        return " ".join([*words, "kernels=on"] if self.kernels == "on" else words)

    def plan_command(self) -> str:
        """The command that forecasts the same."""
        words = ["stepladder", "plan", self.model_text, "--on", self.cluster_text]
        words += ["--sequence", self.sequence] if self.reads_sequences else []
        words += ["--price", self.price] if self.price else []
        return shlex.join([*words, "--plan", self.plan_text, "--tokens", self.tokens])

    def train_command(self) -> str:
        """The command that trains so, on each machine; empty for what is only planned."""
        if not self.is_built_in():
            return ""
        words = ["stepladder", "train", self.model_text]
        words += ["--ranks", self.per_node] if self.per_node != "1" else []
        if self.nodes != "1":
            words += ["--nodes", f"{self.nodes}:{self.nodes}", "--rendezvous", "HOST:29400"]
            words += ["--run.folder", "SHARED_FOLDER"]
        words += ["--plan", self.plan_text]
        if self.reads_sequences:
            return shlex.join([*words, "--model.sequence", self.sequence])
        return shlex.join([*words, "--data.source", "IMAGES"])

    def is_built_in(self) -> bool:
        """Whether there is a module of this name, and not only its numbers."""
        if not self.reads_sequences:
            return self.model in BUILT_IN_RESNETS
        shape = find_shape(self.model_text)
        known = not shape.extra or bool(shape.query_key_norms)
        return known and (shape.gated or not shape.head)


def plan_fields(plan: Plan) -> dict[str, str]:
    """What the form holds of a settled plan."""
    layout = plan.layout
    return {
        "precision": str(plan.precision),
        "data": f"zero{plan.zero}" if plan.zero else "ddp",
        "copies": str(layout.replicate if plan.zero else 1),
        "tensor": str(layout.tensor),
        "pipeline": str(layout.pipeline),
        "context": str(layout.context),
        "batch": str(plan.batch.sequences),
        "accumulate": str(plan.batch.micro_batches),
        "recompute": str(plan.recompute),
        "schedule": str(plan.schedule),
        "offload": ",".join(plan.offload) or "none",
        "compile": "on" if plan.compile else "off",
        "kernels": "on" if plan.kernels else "off",
    }


def cluster_fields(text: str) -> dict[str, str]:
    """What the form holds of a cluster; the links are kept as they were written."""
    cluster = Cluster.parse(text)
    return {
        "device": cluster.device.name,
        "per_node": str(cluster.devices_per_node),
        "nodes": str(cluster.num_nodes),
        "links": text.partition(",")[2].strip(),
    }
