"""The table of the soak grows by pieces: a file's row is of its last run."""

from tests.soak import HEADER, new_rows, page, read_rows

REPORT = """<testsuites><testsuite>
<testcase file="tests/data/test_a.py" name="one" time="1.25"/>
<testcase file="tests/data/test_a.py" name="two" time="2.5"><failure message="no"/></testcase>
<testcase file="tests/data/test_a.py" name="three" time="0.1"><skipped message="gpu"/></testcase>
<testcase file="tests/loss/test_b.py" name="four" time="61"><properties/></testcase>
</testsuite></testsuites>"""


def test_a_piece_replaces_the_rows_of_its_files_and_leaves_the_others(tmp_path):
    (tmp_path / "soak.xml").write_text(REPORT)
    rows = new_rows(tmp_path / "soak.xml")
    assert rows["data/test_a.py"].startswith("1 | 1 | 1 | 4 | 20")
    earlier = {
        "data/test_a.py": "9 | 0 | 0 | 9 | then | there",
        "gone.py": "1 | 0 | 0 | 1 | then |",
    }
    earlier["kept/test_c.py"] = "2 | 0 | 0 | 30 | then | there"
    marked = {"data/test_a.py", "loss/test_b.py", "kept/test_c.py", "model/test_d.py"}
    text = page(earlier | rows, marked)
    assert HEADER in text and "3 files: 4 passed, 1 skipped, 1 failed; 2 minutes" in text
    assert "| kept/test_c.py | 2 | 0 | 0 | 30 | then | there |" in text
    assert "gone.py" not in text and text.endswith("Not run yet: model/test_d.py.\n")
    assert page(read_rows(text), marked) == text
