"""Why the files are our own: what torch's distributed checkpoint does with its, shown.

Should one of these fail, torch has improved and the choice can be made again.
"""

import pickletools

import pytest
import torch
import torch.distributed.checkpoint as dcp

WHOLE = torch.arange(1.0, 5.0)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def folder(tmp_path):
    dcp.save({"w": WHOLE.clone()}, checkpoint_id=tmp_path, no_dist=True)
    return tmp_path


def test_its_metadata_is_a_pickle_that_imports_and_calls(folder):
    read = pickletools.genops((folder / ".metadata").read_bytes())
    names = {operation.name for operation, _, _ in read}
    assert names & {"GLOBAL", "STACK_GLOBAL"} and names & {"REDUCE", "NEWOBJ", "NEWOBJ_EX"}


def test_it_loads_a_flipped_bit_without_a_word(folder):
    (file,) = folder.glob("*.distcp")
    data = bytearray(file.read_bytes())
    data[data.find(WHOLE.numpy().tobytes()) + 3] ^= 0x40
    file.write_bytes(data)
    found = {"w": torch.zeros(4)}
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    assert found["w"][0] != WHOLE[0] and torch.equal(found["w"][1:], WHOLE[1:])
