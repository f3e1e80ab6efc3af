"""The tests' own processes in the form a comparison asks for."""

from pathlib import Path

from stepladder.plan.reference import Reference
from stepladder.train.user_code.import_code import find_named
from stepladder.train.user_code.user_code import UserCode
from stepladder.verify import Subject, find_subject
from stepladder.verify.course import make_course
from stepladder.verify.parity_trial import compare_course
from tests.ranks import POOL

SGD, CLIPPED = "sgd lr=0.1", "adamw lr=1e-3 clip=0.1"  # so low that it bites in every step
LLAMA = "llama:layers=2,hidden=32,heads=2,vocab=64"
MIXTURE = "llama:layers=2,hidden=32,heads=2,vocab=64,ffn=32,experts=4,active=2"
FOREIGN = Path(__file__).parents[2] / "benchmarks" / "parity" / "parity_models.py"
PLAIN: dict[Path, dict] = {}  # plain runs, beside whose weights their folder names


def foreign(name: str) -> UserCode:
    """A model of that file on the samples it reads."""
    samples = find_named(Reference(str(FOREIGN), "SAMPLES"), "data").get(name, "data")
    return UserCode(f"{FOREIGN}:{name}", data=f"{FOREIGN}:{samples}")


def compare(
    folder: Path, model: str | UserCode | Subject, plan: str, optimizer=SGD, *, steps=3, learn=None
):
    """One finding, on the processes all tests share.

    A batch is half as large as the command's: every rank still has several micro-batches.
    """
    plan = plan if "batch=" in plan else f"{plan} batch=8"
    subject = model if isinstance(model, Subject) else find_subject(model)
    course = make_course(subject, plan, optimizer, steps=steps)
    place = folder / f"{subject.name}-{steps}".replace("/", "-")
    place.mkdir(exist_ok=True)
    return compare_course(POOL, course, place, PLAIN.setdefault(place, {}), learn)
