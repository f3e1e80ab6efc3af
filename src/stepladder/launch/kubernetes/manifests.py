"""A run as Kubernetes objects: a plain indexed Job, a PyTorchJob, or a TrainJob with its runtime.

One pod is one machine: its container is that machine's launcher, and the launchers meet in the
first pod, by the name that a headless service (or the operator's own) gives it. The run's file
comes in a ConfigMap, checkpoints go to a claim that all pods share, and /dev/shm is memory, since
64 MiB of it is too little for data workers. A pod that was taken off after saving (143) is started
again and costs no retry; a user's mistake (2) ends the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepladder.errors import PlanError, raise_all
from stepladder.launch.local.first_failure import MISTAKE
from stepladder.launch.local.rendezvous import PORT
from stepladder.launch.run_request import MIB, Request
from stepladder.launch.slurm.slurm_script import TAKEN_OFF

from .dns_names import misnamed

Manifest = dict[str, Any]

KINDS = ("job", "pytorchjob", "trainjob")
FILES, CHECKPOINTS, SHARED_MEMORY = "/etc/stepladder", "/checkpoints", "/dev/shm"
LARGEST_FILE = 2**20 - 2**14  # a ConfigMap holds a mebibyte, its own words included
OTHERS_WORDS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # an operator's, half a set
TRAINER = "trainer.kubeflow.org"
NODE = "node"  # the name by which TrainJob knows its trainer's pods


@dataclass(frozen=True, slots=True)
class KubernetesChoice:
    """What only Kubernetes asks for."""

    image: str
    kind: str = "job"
    namespace: str = "default"
    claim: str = ""  # one that exists; empty: one is made
    storage_bytes: int = 100 * 2**30  # of the claim that is made
    shared_memory_bytes: int = 16 * 2**30
    file: tuple[str, str] | None = None  # the run's file: its name and what it says


def manifests(request: Request, choice: KubernetesChoice) -> list[Manifest]:
    """Everything that is applied, in this order."""
    raise_all(misnamed(choice.namespace, choice.claim, choice.image))
    makers = {"job": plain_job, "pytorchjob": pytorch_job, "trainjob": train_job}
    return [
        *(claim(request, choice) for _ in range(not choice.claim)),
        *(config_map(request, choice) for _ in range(choice.file is not None)),
        *makers[choice.kind](request, choice),
    ]


def meta(request: Request, choice: KubernetesChoice, suffix: str = "") -> Manifest:
    return {
        "name": f"{request.name}{suffix}",
        "namespace": choice.namespace,
        "labels": labels(request),
    }


def labels(request: Request) -> Manifest:
    return {
        "app.kubernetes.io/name": "stepladder",
        "app.kubernetes.io/instance": request.name,
    }


def amount(num_bytes: int) -> str:
    return f"{num_bytes // MIB}Mi"


def claim(request: Request, choice: KubernetesChoice) -> Manifest:
    """Where checkpoints go: a volume that every machine writes to."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": meta(request, choice, "-checkpoints"),
        "spec": {
            "accessModes": ["ReadWriteOnce" if request.most == 1 else "ReadWriteMany"],
            "resources": {"requests": {"storage": amount(choice.storage_bytes)}},
        },
    }


def config_map(request: Request, choice: KubernetesChoice) -> Manifest:
    """The run's file, as the pods find it."""
    assert choice.file is not None
    name, text = choice.file
    if len(text.encode()) > LARGEST_FILE:
        raise PlanError(
            "run file",
            f"{name} has {len(text.encode())} bytes, and a ConfigMap holds {LARGEST_FILE}",
            "Put it into the image, and name it there.",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(request, choice, "-files"),
        "data": {name: text},
    }


def pod(
    request: Request, choice: KubernetesChoice, *, container: str, command: list[str]
) -> Manifest:
    """One machine of the run."""
    held = request.resources
    memory = {"memory": amount(held.memory_bytes)} if held.memory_bytes else {}
    gpus = {"nvidia.com/gpu": str(held.gpus)} if held.gpus else {}
    mounts = [
        {"name": "shared-memory", "mountPath": SHARED_MEMORY},
        {"name": "checkpoints", "mountPath": CHECKPOINTS},
    ]
    shared = {"medium": "Memory", "sizeLimit": amount(choice.shared_memory_bytes)}
    kept = {"claimName": choice.claim or f"{request.name}-checkpoints"}
    volumes: list[Manifest] = [
        {"name": "shared-memory", "emptyDir": shared},
        {"name": "checkpoints", "persistentVolumeClaim": kept},
    ]
    if choice.file is not None:
        mounts.append({"name": "files", "mountPath": FILES})
        volumes.append({"name": "files", "configMap": {"name": f"{request.name}-files"}})
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": request.notice_seconds,
        "containers": [
            {
                "name": container,
                "image": choice.image,
                "command": command,
                "workingDir": str(request.directory),
                "ports": [{"name": "rendezvous", "containerPort": PORT}],
                "resources": {
                    "requests": {"cpu": str(request.cpus), **memory, **gpus},
                    "limits": {**memory, **gpus},
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def launcher(request: Request, first: str) -> list[str]:
    """What a pod runs; the launchers meet in the pod of this name."""
    words = (request.python, *request.words, *request.meeting(request.nodes, f"{first}:{PORT}"))
    return [word.replace("$(", "$$(") for word in words]  # else Kubernetes puts a variable there


def retries(request: Request, container: str) -> Manifest:
    """What a pod that ended costs."""
    ended = {"containerName": container, "operator": "In"}
    return {
        "backoffLimit": request.restarts * request.most,  # a lost machine ends the others' pods too
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {**ended, "values": [MISTAKE]}},
                {"action": "Ignore", "onExitCodes": {**ended, "values": [TAKEN_OFF]}},
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
            ]
        },
    }


def plain_job(request: Request, choice: KubernetesChoice) -> list[Manifest]:
    """A Job whose pods have numbers, and the service that gives them names."""
    first = f"{request.name}-0.{request.name}"
    machine = pod(request, choice, container="run", command=launcher(request, first))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(request, choice),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # launchers meet before anything is ready
            "selector": {"app.kubernetes.io/instance": request.name},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta(request, choice),
        "spec": {
            "completionMode": "Indexed",
            "completions": request.most,
            "parallelism": request.most,
            **retries(request, "run"),
            "template": {
                "metadata": {"labels": labels(request)},
                "spec": {"subdomain": request.name, **machine},
            },
        },
    }
    return [service, job]


def pytorch_job(request: Request, choice: KubernetesChoice) -> list[Manifest]:
    """The training operator's own; where machines may leave, all of them are workers."""
    elastic = request.least < request.most
    first = f"{request.name}-{'worker' if elastic else 'master'}-0"
    own = ["env", *(word for name in OTHERS_WORDS for word in ("-u", name))]
    command = [*own, *launcher(request, first)]
    machine = pod(request, choice, container="pytorch", command=command)
    del machine["restartPolicy"]  # the operator's is stated beside the pod
    counts = {"Worker": request.most} if elastic else {"Master": 1, "Worker": request.most - 1}
    replicas = {
        role: {
            "replicas": count,
            "restartPolicy": "ExitCode",  # again from 128 on, which is a machine taken away
            "template": {"metadata": {"labels": labels(request)}, "spec": machine},
        }
        for role, count in counts.items()
        if count
    }
    spec: Manifest = {
        "nprocPerNode": str(request.ranks),
        "runPolicy": {
            "cleanPodPolicy": "Running",
            "backoffLimit": request.restarts * request.most,
        },
        "pytorchReplicaSpecs": replicas,
    }
    if elastic:
        spec["elasticPolicy"] = {
            "minReplicas": request.least,
            "maxReplicas": request.most,
            "rdzvBackend": "c10d",
            "maxRestarts": request.restarts,
        }
    about: Mapping[str, Any] = meta(request, choice)
    return [
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": about, "spec": spec}
    ]


def train_job(request: Request, choice: KubernetesChoice) -> list[Manifest]:
    """The trainer's own. Volumes belong to its runtime, so the run brings one along."""
    command = launcher(request, f"{request.name}-{NODE}-0-0.{request.name}")
    machine = pod(request, choice, container=NODE, command=command)
    job = {
        "apiVersion": f"{TRAINER}/v1alpha1",
        "kind": "TrainJob",
        "metadata": meta(request, choice),
        "spec": {
            "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": request.name},
            "trainer": {
                "image": choice.image,
                "command": command,
                "numNodes": request.most,
                "numProcPerNode": request.ranks,
                "resourcesPerNode": machine["containers"][0]["resources"],
            },
        },
    }
    return [training_runtime(request, choice, machine), job]


def training_runtime(request: Request, choice: KubernetesChoice, machine: Manifest) -> Manifest:
    """What a TrainJob's pods are made of."""
    about = meta(request, choice)
    about["labels"] = {**labels(request), f"{TRAINER}/framework": "torch"}
    replicated = {
        "name": NODE,
        "template": {
            "metadata": {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}},
            "spec": {
                **retries(request, NODE),
                "template": {"metadata": {"labels": labels(request)}, "spec": machine},
            },
        },
    }
    jobs = {
        "failurePolicy": {"maxRestarts": request.restarts},
        "replicatedJobs": [replicated],
    }
    return {
        "apiVersion": f"{TRAINER}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": about,
        "spec": {
            "mlPolicy": {"numNodes": request.most, "torch": {"numProcPerNode": request.ranks}},
            "template": {"spec": jobs},
        },
    }
