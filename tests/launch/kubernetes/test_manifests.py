"""Manifests against the published schemas, offline.

Core kinds are held to Kubernetes' own (the package kubernetes-validate brings them). The kinds of
Kubeflow are not in any package: their fields below are written from its published types, and the
pods inside are held to the core schema again.
"""

import pytest
import yaml

from stepladder.errors import PlanError
from stepladder.launch import KubernetesChoice, OnKubernetes, Resources
from stepladder.launch.kubernetes.manifests import manifests
from tests.launch.test_run_request import request_of

VERSION = "1.31"
STRING, NUMBER = {"type": "string"}, {"type": "integer"}


def record(required=(), **fields):
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


META = record(
    ["name", "namespace"], name=STRING, namespace=STRING, labels={"type": "object"}
)  # fmt: skip
POD = {"type": "object", "required": ["spec"]}  # held to the core schema by itself
REPLICA = record(
    replicas=NUMBER,
    template=POD,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
)
PYTORCH_JOB = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v1"},
    kind={"const": "PyTorchJob"},
    metadata=META,
    spec=record(
        ["pytorchReplicaSpecs"],
        nprocPerNode=STRING,
        runPolicy=record(
            cleanPodPolicy={"enum": ["All", "Running", "None"]},
            ttlSecondsAfterFinished=NUMBER,
            activeDeadlineSeconds=NUMBER,
            backoffLimit=NUMBER,
        ),
        elasticPolicy=record(
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            rdzvBackend={"enum": ["c10d", "etcd", "etcd-v2"]},
            rdzvPort=NUMBER,
            rdzvHost=STRING,
            rdzvId=STRING,
            maxRestarts=NUMBER,
        ),
        pytorchReplicaSpecs=record(Master=REPLICA, Worker=REPLICA),
    ),
)
RUNTIME = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
    kind={"const": "TrainingRuntime"},
    metadata=META,
    spec=record(
        mlPolicy=record(
            numNodes=NUMBER,
            torch=record(numProcPerNode={"type": ["integer", "string"]}),
        ),
        template=record(
            spec=record(
                failurePolicy=record(maxRestarts=NUMBER),
                replicatedJobs={
                    "type": "array",
                    "items": record(
                        ["name", "template"],
                        name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
                        template={"type": "object", "required": ["spec"]},  # a Job's
                    ),
                },
            )
        ),
    ),
)
TRAIN_JOB = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
    kind={"const": "TrainJob"},
    metadata=META,
    spec=record(
        ["runtimeRef"],
        runtimeRef=record(["name"], name=STRING, apiGroup=STRING, kind=STRING),
        trainer=record(
            image={"type": "string", "maxLength": 500},
            command={"type": "array", "items": STRING, "maxItems": 128},
            numNodes=NUMBER,
            numProcPerNode=NUMBER,
            resourcesPerNode={"type": "object"},
        ),
    ),
)
OF_KUBEFLOW = {"PyTorchJob": PYTORCH_JOB, "TrainingRuntime": RUNTIME, "TrainJob": TRAIN_JOB}
FULL = Resources(gpus=8, cpus=96, memory_bytes=512 * 2**30)
FILE = ("RUN.toml", "[train]\nsteps = 5\n")
REQUESTS = {
    "one": request_of(),
    "two": request_of(least=2, most=2, ranks=8, resources=FULL),
    "range": request_of(least=1, most=4, ranks=2),
}


def pods(kind, document):
    """The pods inside of a Kubeflow document, and the Job where one stands around them."""
    if kind == "PyTorchJob":
        for replica in document["spec"]["pytorchReplicaSpecs"].values():
            yield {"restartPolicy": "Never", **replica["template"]["spec"]}
    if kind == "TrainingRuntime":
        for job in document["spec"]["template"]["spec"]["replicatedJobs"]:
            yield job["template"]["spec"]["template"]["spec"]


def hold(document):
    """Raise where the document is not one that a cluster takes."""
    validate = pytest.importorskip("kubernetes_validate", reason="make test brings it")
    jsonschema = pytest.importorskip("jsonschema")
    kind = document["kind"]
    if kind not in OF_KUBEFLOW:
        validate.validate(document, VERSION, strict=True)
        return
    jsonschema.validate(document, OF_KUBEFLOW[kind])
    about = {"name": "x", "namespace": "default"}
    for spec in pods(kind, document):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
        validate.validate(pod, VERSION, strict=True)
    if kind == "TrainingRuntime":
        (job,) = document["spec"]["template"]["spec"]["replicatedJobs"]
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about}
        validate.validate({**whole, "spec": job["template"]["spec"]}, VERSION, strict=True)


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "trainjob"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_cluster_would_take_everything_that_is_applied(kind, name):
    choice = KubernetesChoice("image:1", kind=kind, file=FILE)
    for document in yaml.safe_load_all(OnKubernetes(REQUESTS[name], choice).text()):
        hold(document)


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "trainjob"])
def test_a_field_that_is_misspelt_would_be_seen(kind):
    choice = KubernetesChoice("image:1", kind=kind)
    *_, job = manifests(REQUESTS["two"], choice)
    job["spec"]["paralelism"] = 2
    with pytest.raises(Exception, match="paralelism"):
        hold(job)


def of_kind(kind, documents):
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def test_a_plain_job_meets_in_its_first_pod_by_the_name_of_its_service():
    documents = manifests(REQUESTS["two"], KubernetesChoice("image:1", file=FILE))
    assert [one["kind"] for one in documents] == [
        "PersistentVolumeClaim", "ConfigMap", "Service", "Job"
    ]  # fmt: skip
    job = of_kind("Job", documents)["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["subdomain"] == of_kind("Service", documents)["metadata"]["name"] == "run"
    assert container["command"][-4:] == ["--nodes", "2", "--rendezvous", "run-0.run:29400"]
    assert pod["terminationGracePeriodSeconds"] == 60
    held = {"memory": "524288Mi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": {"cpu": "96", **held}, "limits": held}
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16384Mi"}
    assert volumes[mounted["/checkpoints"]]["persistentVolumeClaim"] == {
        "claimName": of_kind("PersistentVolumeClaim", documents)["metadata"]["name"]
    }
    assert of_kind("ConfigMap", documents)["data"] == dict([FILE])
    rules = job["podFailurePolicy"]["rules"]
    assert [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in rules] == [
        ("FailJob", [2]), ("Ignore", [143]), ("Ignore", None)
    ]  # fmt: skip


def test_a_claim_that_is_there_is_used_and_none_is_made():
    documents = manifests(REQUESTS["one"], KubernetesChoice("image:1", claim="mine"))
    assert [one["kind"] for one in documents] == ["Service", "Job"]
    volumes = of_kind("Job", documents)["spec"]["template"]["spec"]["volumes"]
    assert volumes[1]["persistentVolumeClaim"] == {"claimName": "mine"}


def test_the_operators_half_set_of_variables_does_not_reach_the_launcher():
    (_, job) = manifests(REQUESTS["two"], KubernetesChoice("image:1", kind="pytorchjob"))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {role: one["replicas"] for role, one in replicas.items()} == {"Master": 1, "Worker": 1}
    command = replicas["Master"]["template"]["spec"]["containers"][0]["command"]
    assert command[:10] == [
        "env", "-u", "RANK", "-u", "WORLD_SIZE", "-u", "MASTER_ADDR", "-u", "MASTER_PORT", "/py"
    ]  # fmt: skip
    assert command[-1] == "run-master-0:29400"


def test_where_machines_may_leave_all_of_them_are_workers():
    (_, job) = manifests(REQUESTS["range"], KubernetesChoice("image:1", kind="pytorchjob"))
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert job["spec"]["elasticPolicy"]["minReplicas"] == 1
    command = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert command["command"][-4:] == ["--nodes", "1:4", "--rendezvous", "run-worker-0:29400"]


def test_a_train_job_brings_its_runtime_along():
    (_, runtime, job) = manifests(REQUESTS["two"], KubernetesChoice("image:1", kind="trainjob"))
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"]["command"][-1] == "run-node-0-0.run:29400"
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["template"]["metadata"]["labels"] == step


def test_what_the_cluster_would_refuse_as_a_name_is_said():
    choice = KubernetesChoice("an image", namespace="My Space", claim="a_b")
    with pytest.raises(PlanError) as refused:
        manifests(REQUESTS["one"], choice)
    assert str(refused.value).splitlines() == [
        "namespace: 'My Space' is not a name of Kubernetes'. Use a to z, 0 to 9 and, inside, -.",
        "claim: 'a_b' is not a name of Kubernetes'. Use a to z, 0 to 9 and, inside, -.",
        "image: 'an image' is not an image. Write REPOSITORY/NAME:TAG.",
    ]


def test_a_word_that_looks_like_a_variable_of_kubernetes_stays_as_it_is():
    request = request_of(python="$(HOME)/python")
    documents = manifests(request, KubernetesChoice("host:5000/a/b@sha256:0f"))
    (container,) = of_kind("Job", documents)["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "$$(HOME)/python"


def test_a_file_beyond_what_a_config_map_holds_is_said():
    choice = KubernetesChoice("image:1", file=("big.py", "#" * 2**20))
    with pytest.raises(PlanError) as refused:
        manifests(REQUESTS["one"], choice)
    assert str(refused.value) == (
        "run file: big.py has 1048576 bytes, and a ConfigMap holds 1032192. "
        "Put it into the image, and name it there."
    )
