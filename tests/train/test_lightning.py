"""A Lightning module as it is: the same steps as under its own Trainer, on one rank and on two."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

import stepladder as sl
from stepladder.data import SampleOrder
from stepladder.errors import DataError, ModelError, PlanError
from stepladder.train.lightning import Stepped, Whole
from stepladder.train.optimizer.lightning_optimizer import configured
from stepladder.verify import Subject
from tests.parity.pool import compare
from tests.ranks import run as on_ranks
from tests.soak import soak_after

lightning = pytest.importorskip("pytorch_lightning", reason="its modules are taken as they are")

ROWS, WIDTH, CLASSES = 192, 8, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Classifier(lightning.LightningModule):
    """As people write them: a forward of its own, a metric, a logged loss."""

    def __init__(self, make=lambda self: torch.optim.AdamW(self.parameters(), lr=1e-2)) -> None:
        super().__init__()
        self.make = make
        self.scale = nn.Parameter(torch.ones(WIDTH))  # of no part: it lies in the module itself
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = x * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("loss", loss)
        self.log_dict({"hits": (logits.argmax(-1) == y).float().mean()})
        return {"loss": loss}

    def configure_optimizers(self):
        return self.make(self)


def rows():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=draw)
    return TensorDataset(x, torch.randint(0, CLASSES, (ROWS,), generator=draw))


def classifier(make=None, kind=Classifier):
    torch.manual_seed(0)
    return kind(make) if make else kind()


def decayed(self):
    weights = [p for p in self.parameters() if p.dim() > 1]
    others = [p for p in self.parameters() if p.dim() <= 1]
    kinds = [{"params": weights}, {"params": others, "lr": 1e-3, "weight_decay": 0.0}]
    return {"optimizer": torch.optim.AdamW(kinds, lr=1e-2, weight_decay=0.1)}


@pytest.mark.parametrize("make", [None, decayed])
def test_steps_are_those_of_its_own_trainer(make, tmp_path):
    theirs, mine = classifier(make), classifier(make)
    data, steps = rows(), 4
    order = SampleOrder(ROWS, 0, True).indices(np.arange(steps * 16))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", gradient_clip_val=0.5, enable_checkpointing=False,
        accumulate_grad_batches=2, default_root_dir=tmp_path, **quiet,
    )  # fmt: skip
    trainer.fit(theirs, DataLoader(Subset(data, order.tolist()), batch_size=8))
    run = sl.from_lightning(mine, clip=0.5, plan="fp32 accumulate=2", device="cpu")
    with run.batches(data, size=16, seed=0) as batches:
        for report in sl.fit(run, batches, steps=steps):
            report.read()
    for (name, one), other in zip(theirs.named_parameters(), mine.parameters()):
        assert torch.allclose(one, other, atol=1e-6), name
    assert set(run.module.logged) == {"loss", "hits"}
    assert dict(run.module.named_parameters()).keys() == dict(mine.named_parameters()).keys()


def subject():
    """Whole samples, so that a pipeline's stages are weighed on what a pass is given."""
    return Stepped(classifier()), Whole(rows()), None


@pytest.mark.parametrize("plan", soak_after(["fp32 zero3", "fp32 pipeline=2"]))
def test_two_ranks_compute_what_one_does(plan, tmp_path):
    found = compare(tmp_path, Subject("lightning", subject), plan)
    assert (found.verdict, found.problem) == ("same", "")


def test_a_copy_runs_its_own_parameters():
    run = Stepped(classifier())
    other = copy.deepcopy(run)
    with torch.no_grad():
        other.head.weight.zero_(), other.head.bias.zero_()
    batch = rows()[:8]
    assert other(batch=batch).item() == pytest.approx(torch.tensor(CLASSES).log().item())
    assert run(batch=batch).item() != other(batch=batch).item()


def as_dict(batch):
    return {"x": batch[0], "y": batch[1]}


class OfDicts(Classifier):
    def training_step(self, batch, index):
        return super().training_step((batch["x"], batch["y"]), index)


def losses_of_loaders(plan):
    """Batches as a DataLoader has them: pairs, which a run tells apart, and dicts."""
    loader = DataLoader(rows(), batch_size=8)
    dicts = DataLoader(rows(), batch_size=8, collate_fn=lambda rows: as_dict(default_collate(rows)))
    found = []
    for kind, data in ((Classifier, loader), (OfDicts, dicts)):
        run = sl.from_lightning(classifier(kind=kind), plan=plan, device="cpu")
        found.append([report.loss for report in sl.fit(run, data)])
    run = sl.from_lightning(classifier(), plan=plan, device="cpu")
    with run.batches(rows(), size=8, shuffle=False) as batches:
        found.append([report.loss for report in sl.fit(run, batches, steps=len(loader))])
    return found


def test_batches_of_a_data_loader_reach_the_training_step_whole():
    pairs, dicts, batches = losses_of_loaders("fp32")
    assert pairs == dicts == batches
    found, other = on_ranks(losses_of_loaders, 2, "fp32", init=False)
    assert found == other
    for each in found:
        assert each == pytest.approx(pairs, rel=1e-5)


def test_a_source_keeps_what_else_it_offers():
    whole = Whole(sl_arrays := [[torch.zeros(2), torch.tensor(1)]])
    assert len(whole) == 1 and isinstance(whole[0]["batch"], tuple)
    assert not hasattr(whole, "fetch") and whole.append == sl_arrays.append


WITHOUT_WORDS = {
    "another kind": lambda self: torch.optim.RMSprop(self.parameters()),
    "nesterov": lambda self: torch.optim.SGD(self.parameters(), momentum=0.9, nesterov=True),
    "only the head": lambda self: torch.optim.AdamW(self.head.parameters()),
    "betas by group": lambda self: torch.optim.AdamW([
        {"params": self.blocks.parameters()}, {"params": [self.scale], "betas": (0.5, 0.9)},
        {"params": self.head.parameters()}]),
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHOUT_WORDS)
def test_an_optimizer_without_words_is_used_itself(kind):
    mine = classifier(WITHOUT_WORDS[kind])
    run = sl.from_lightning(mine, plan="fp32", device="cpu")
    assert run.plan.optimizer.is_code
    before = mine.head.weight.detach().clone()
    run.step({"batch": rows()[:8]}).read()
    assert not torch.equal(before, mine.head.weight)


def test_several_optimizers_are_refused():
    two = classifier(lambda self: [torch.optim.SGD(self.parameters()) for _ in range(2)])
    with pytest.raises(PlanError, match="returned 2 optimizers, and a run has one"):
        sl.from_lightning(two)


def scheduled(self):
    made = torch.optim.Adam(self.parameters(), lr=1e-2)
    return [made], [torch.optim.lr_scheduler.LinearLR(made)]


def scheduled_by_step(self):
    (made,), (scheduler,) = scheduled(self)
    return {"optimizer": made, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_a_scheduler_takes_a_step_after_each_of_the_runs():
    run = sl.from_lightning(classifier(scheduled_by_step), plan="fp32", device="cpu")
    rates = [run.step({"batch": rows()[:8]}).lr for _ in range(6)]
    assert rates == pytest.approx([1e-2 * (1 / 3 + 2 / 15 * step) for step in range(6)])


def test_a_configure_optimizers_without_an_optimizer_is_refused():
    with pytest.raises(PlanError, match="^configure_optimizers: returned None, and no optimizer"):
        sl.from_lightning(classifier(lambda self: None), plan="fp32", device="cpu")


def test_a_scheduler_of_epochs_needs_words():
    with pytest.raises(PlanError, match="scheduler of Classifier takes a step every 1 epoch"):
        sl.from_lightning(classifier(scheduled))
    run = sl.from_lightning(classifier(scheduled), rate="linear steps=10", plan="fp32")
    assert (run.plan.optimizer.name, run.lr) == ("adam", 1e-2)


def test_words_go_before_configure_optimizers():
    run = sl.from_lightning(classifier(scheduled), optimizer="sgd lr=0.5", plan="fp32")
    assert (run.plan.optimizer.name, run.plan.optimizer.lr) == ("sgd", 0.5)
    assert configured(classifier(), scheduled=False)[0].betas == (0.9, 0.999)


def test_steps_taken_by_hand_are_refused():
    module = classifier()
    module.automatic_optimization = False
    with pytest.raises(ModelError, match="Classifier takes its steps by hand"):
        sl.from_lightning(module)


class Meddling(Classifier):
    def on_before_optimizer_step(self, optimizer):
        pass

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


def test_hooks_that_would_change_a_step_and_nobody_calls_are_refused():
    said = "on_after_batch_transfer, on_before_optimizer_step: of Meddling would not be called"
    with pytest.raises(ModelError, match=said):
        sl.from_lightning(Meddling(), plan="fp32")


class Asking(Classifier):
    def training_step(self, batch):
        return self.trainer.world_size * self(batch[0]).sum()


def test_what_only_a_trainer_has_is_named():
    run = sl.from_lightning(Asking(), plan="fp32", device="cpu")
    said = r"Asking asks for its Trainer \(world_size\), and there is none"
    with pytest.raises(ModelError, match=said):
        run.step({"batch": rows()[:8]})


class Annealed(Classifier):
    def training_step(self, batch):
        return self(batch[0]).sum() * 0.9**self.current_epoch


class Mute(Classifier):
    def training_step(self, batch):
        self(batch[0]).sum()


class Silent(Classifier):
    def training_step(self, batch):
        return {"accuracy": self(batch[0]).sum()}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Annealed, r"Annealed asks for its Trainer \(current_epoch\), and there is none"),
        (Mute, "training_step: returns None and no loss. Return the loss."),
        (Silent, "training_step: returns accuracy and no loss. Return it under the key 'loss'."),
    ],
)
def test_a_step_that_would_count_from_0_for_ever_or_has_no_loss_is_refused(kind, said):
    run = sl.from_lightning(kind(), plan="fp32", device="cpu")
    with pytest.raises(ModelError, match=said):
        run.step({"batch": rows()[:8]})


class Predicting(Classifier):
    def predict_step(self, batch, batch_idx):
        return self(batch[0]).argmax(-1)

    def on_train_epoch_end(self):
        pass

    def validation_step(self, batch, batch_idx):
        pass


def predicted(plan):
    """Of pairs and of inputs alone, and of a predict_step."""
    pairs, inputs = DataLoader(rows(), batch_size=50), DataLoader(rows()[:][0], batch_size=50)
    run = sl.from_lightning(classifier(), plan=plan, device="cpu")
    own = sl.from_lightning(classifier(kind=Predicting), plan=plan, device="cpu")
    return run.predict(pairs), run.predict(inputs), own.predict(pairs), run.evaluate(pairs)


def test_predictions_are_those_of_forward_and_not_the_loss():
    module, (x, y) = classifier(), rows()[:]
    wanted = module(x).detach()
    for given in (predicted("fp32 micro=20"), on_ranks(predicted, 2, "fp32 zero3", init=False)[1]):
        outputs, alone, kinds, loss = given
        torch.testing.assert_close(outputs, wanted)
        torch.testing.assert_close(alone, wanted)
        assert torch.equal(kinds, wanted.argmax(-1))
        assert loss == pytest.approx(F.cross_entropy(wanted, y).item(), rel=1e-5)


def test_metrics_of_a_training_step_and_predictions_without_forward_are_refused():
    run = sl.from_lightning(classifier(), plan="fp32", device="cpu")
    said = "^metrics: a training_step does not tell its outputs and targets. Use run.predict"
    with pytest.raises(DataError, match=said):
        run.evaluate(DataLoader(rows(), batch_size=8), metrics={"a": lambda o, t: 0.0})
    run = sl.from_lightning(Headless(), plan="fp32", device="cpu")
    with pytest.raises(ModelError, match="Headless: has no forward to predict with. Define it"):
        run.predict(DataLoader(rows(), batch_size=8))


class Headless(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def training_step(self, batch):
        return F.cross_entropy(self.head(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_hooks_that_nobody_calls_are_an_event():
    run = sl.from_lightning(classifier(kind=Predicting), plan="fp32", device="cpu")
    assert run.events == [
        "Predicting: nobody calls its on_train_epoch_end, validation_step, since there is no "
        "Trainer: do in your loop what they do"
    ]
    assert not sl.from_lightning(classifier(), plan="fp32", device="cpu").events
