"""Pictures and texts of a journal: the newest of each name, however many there are."""

from base64 import b64encode

from stepladder.dashboard import samples
from stepladder.dashboard.samples import Samples

PNG = b64encode(b"\x89PNG\r\n\x1a\n...").decode()


def test_the_newest_of_each_name_are_kept_and_listed_first():
    kept = Samples()
    for step in range(6):
        kept.add({"name": "face", "step": step, "png": PNG})
    kept.add({"name": "answer", "step": 2, "text": "<b>"})
    listed = [(one["name"], one["step"], one["text"]) for one in kept.listed()]
    assert listed == [*(("face", step, None) for step in (5, 4, 3, 2)), ("answer", 2, "<b>")]
    assert kept.picture("face", 5).startswith(b"\x89PNG") and kept.picture("face", 0) is None
    assert kept.picture("answer", 2) is None and kept.picture("nobody", 2) is None


def test_a_resumed_run_replaces_what_it_repeats():
    kept = Samples()
    for step in (1, 5, 3):
        kept.add({"name": "a", "step": step, "text": str(step)})
    assert [one["step"] for one in kept.listed()] == [3, 1]


def test_what_is_no_picture_or_too_much_is_left_out():
    kept = Samples()
    html = b64encode(b"<script>").decode()
    for entry in ({"png": html}, {"png": "?"}, {"png": 3}, {"text": 3}, {},
                  {"png": PNG + "A" * samples.MAX_BYTES}):  # fmt: skip
        kept.add({"name": "x", "step": 1, **entry})
    kept.add({"name": "x", "step": "1", "text": "a"})
    assert kept.listed() == []
    for number in range(samples.MAX_NAMES + 5):
        kept.add({"name": str(number), "step": 0, "text": "a"})
    assert len(kept.listed()) == samples.MAX_NAMES
