"""The same steps rehearsed, and forecast by formula, without a GPU."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import stepladder as sl
from stepladder.plan import BatchSplit
from stepladder.rehearse import rehearse
from stepladder.train.module_inputs import arranged_sample
from zoo_cases import OPTIMIZER, case_of, job_of

DEVICE = "1 x H200"


def rehearse_job(job: str, out: Path) -> None:
    """Every plan in turn; each row is a line of the file as soon as it is known."""
    torch.set_num_threads(1)
    name, plans = job_of(job)
    case = case_of(name)
    for plan in plans:
        row = {"module": name, "plan": plan}
        row["rehearsed"] = caught(rehearse_plan, case, plan)
        row["formula"] = caught(forecast_plan, case, plan)
        with out.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


def caught(find: Any, case: Any, plan: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = find(case, plan)
        return found
    except Exception as failed:  # one plan must not end the others
        return {"failed": f"{type(failed).__name__}: {str(failed)[:200]}"}


def rehearse_plan(case: Any, plan: str) -> dict[str, Any]:
    began = time.perf_counter()
    found = rehearse(case.module, plan, sample=case.batch, loss=case.loss, optimizer=OPTIMIZER)
    return {
        "allocated": found.allocated_bytes,
        "reserved": found.reserved_bytes,
        "phase": found.phase,
        "at": found.module,
        "owners": found.memory.by_owner(),
        "seconds": time.perf_counter() - began,
    }


def forecast_plan(case: Any, plan: str) -> dict[str, Any]:
    sample = arranged_sample(case.batch, case.module, case.loss)
    facts = sl.describe(case.module, sample=sample)
    rows = sample.num_rows
    asked = replace(sl.Plan.parse(plan), batch=BatchSplit(rows, rows, 1))
    found = sl.forecast(facts, asked, DEVICE).memory
    return {"allocated": found.allocated_bytes, "reserved": found.reserved_bytes}
