"""A certificate is read as it was written, and nothing else is taken for one."""

import json

import pytest

from stepladder.errors import RecordError
from stepladder.verify.certificate.certificate import (
    Certificate,
    CertifiedRun,
    Fingerprint,
    StepRecord,
    digest,
)

FIRST, LAST = {"weight": Fingerprint("ab", (1.0, 2.0))}, {"weight": Fingerprint("cd", (1.5, 2.5))}
RUN = CertifiedRun("fp32", "fp32", "sgd lr=0.1", "cpu", "same", FIRST, (StepRecord(0.1, LAST),))
CERTIFICATE = Certificate("Net", {"model": "mlp-tiny"}, {"torch": "2.13.0"}, (RUN,))


def test_what_is_written_is_read(tmp_path):
    path = CERTIFICATE.write(tmp_path / "proof.json")
    assert Certificate.read(path) == CERTIFICATE
    assert [each.name for each in tmp_path.iterdir()] == ["proof.json"]
    path.write_text(json.dumps(json.loads(path.read_text())))  # spaced otherwise
    assert Certificate.read(path) == CERTIFICATE


def test_another_file_is_refused_in_a_line(tmp_path):
    path = CERTIFICATE.write(tmp_path / "proof.json")
    text = path.read_text()
    cases = {
        "was changed after it was written": text.replace("0.1,", "0.2,"),
        "is damaged or something else": text[: len(text) // 2],
        "is JSON, but not of a certificate": '{"plan": "fp32"}',
        "is of version 1, and this stepladder reads 2": text.replace(
            '"version": 2', '"version": 1'
        ),
    }
    for said, contents in cases.items():
        path.write_text(contents)
        with pytest.raises(RecordError, match=said) as refused:
            Certificate.read(path)
        assert "\n" not in str(refused.value)


def test_a_missing_part_file_or_folder_is_told(tmp_path):
    body = {"format": "stepladder certificate", "version": 2, "model": "Net"}
    path = tmp_path / "proof.json"
    path.write_text(json.dumps({**body, "digest": digest(body)}))
    with pytest.raises(RecordError, match="lacks a part that every certificate has .'subject'."):
        Certificate.read(path)
    with pytest.raises(RecordError, match="none.json cannot be read: No such file"):
        Certificate.read(tmp_path / "none.json")
    with pytest.raises(RecordError, match="proof.json cannot be written: No such file"):
        CERTIFICATE.write(tmp_path / "none" / "proof.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": []}, "the steps of 'fp32'"),
        ({"steps": [{"loss": 0.1, "tensors": {}}]}, "'weight' before and after step 0 of 'fp32'"),
        ({"first": {}}, "'weight' before and after step 0 of 'fp32'"),
        ({"steps": [{"loss": None, "tensors": {"weight": {"hash": "c", "sketch": []}}}]},
         "the loss of step 0 of 'fp32'"),
    ],
)  # fmt: skip
def test_a_file_that_tells_less_than_it_claims_is_refused(change, said, tmp_path):
    """Whoever takes something out can renew the digest; there must be something to compare."""
    path = CERTIFICATE.write(tmp_path / "proof.json")
    body = json.loads(path.read_text())
    del body["digest"]
    body["runs"][0] |= change
    path.write_text(json.dumps({**body, "digest": digest(body)}))
    with pytest.raises(RecordError, match="lacks a part that every certificate has") as refused:
        Certificate.read(path)
    assert said in str(refused.value)
