"""`stepladder verify certificate`: replay what another machine wrote down, and say if it is so."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json
from stepladder.errors import PlanError

from .import_torch import loading

if TYPE_CHECKING:
    from stepladder.verify import Subject
    from stepladder.verify.certificate.certificate import Certificate

FAILED = 1


def verify_certificate(options: argparse.Namespace) -> int:
    """Take the certificate's runs again; 1 where one of them differs."""
    with loading():
        from stepladder.verify.certificate.certificate import Certificate
        from stepladder.verify.certificate.replay import replay

    if options.model is None:
        raise PlanError(
            "verify", "no certificate was named", "'stepladder verify certificate FILE'."
        )
    certificate = Certificate.read(options.model)
    found = replay(certificate, subject_in(certificate, options.model))
    if options.json:
        as_json(found.to_dict())
    else:
        print(found)
    return 0 if found.same else FAILED


def subject_in(certificate: Certificate, path: str) -> Subject:
    """What was certified: a recipe's model and data, or those that were named."""
    from stepladder.job.recipe_subject import subject_of_recipe
    from stepladder.plan.recipe import read_recipe
    from stepladder.verify.certificate.certify import named_subject

    texts = certificate.subject
    if "recipe" in texts:
        return subject_of_recipe(read_recipe(texts["recipe"], texts["settings"]))
    return named_subject(certificate, path)
