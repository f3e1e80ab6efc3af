"""A journal line that no run would write ends neither the reader, the page nor the report."""

import json
import os
import threading

import pytest

from stepladder.cli.main import main
from stepladder.dashboard import JournalIndex
from stepladder.dashboard.run_facts import headline, run_facts
from stepladder.dashboard.run_list import RunList
from stepladder.dashboard.web.application import json_response
from stepladder.errors import RecordError
from stepladder.record import Journal, read_journal

LARGE = "1" + "0" * 30
HOSTILE = [
    f'{{"kind":"step","step":{LARGE},"loss":1.0}}',
    f'{{"kind":"step","step":1{"0" * 5000},"loss":1.0}}',
    f'{{"kind":"step","step":5,"loss":{LARGE},"seconds":-1e400,"memory_bytes":{"9" * 400}}}',
    '{"kind":"step","step":NaN,"loss":Infinity}',
    '{"kind":"step","step":6,"loss":NaN,"tokens_per_second":"fast","seconds":[]}',
    '{"kind":"step","step":{"a":1}}',
    '{"kind":"step","step":-9007199254740993,"loss":true}',
    '{"kind":["step"],"step":1}',
    '{"kind":"event","step":' + LARGE + ',"text":{"deep":' + "[" * 900 + "]" * 900 + "}}",
    '{"kind":"profile","causes":[1],"findings":7,"bound":{}}',
    '{"kind":"profile","causes":{"compute":"long"},"findings":[7]}',
    '{"kind":"start","step":' + LARGE + ',"plan":{"a":' + "[" * 90 + "]" * 90 + "}}",
    '{"kind":"start","step":1e3,"plan":7,"environment":[1],"because":{"why":1e999}}',
    '{"kind":"forecast","time":[1],"memory":"all","tokens_per_step":' + LARGE + "}",
    '{"kind":"forecast","time":{"step_seconds":1e-320},"tokens_per_step":1e300}',
    '{"kind":"measured","memory":{"a":1e308,"b":1e308},"step_seconds":' + LARGE + "}",
    '{"kind":"ranks","step":3,"own_seconds":[1e308,1e308,"x",null],"wait_seconds":{}}',
    f'{{"kind":"ranks","step":4,"own_seconds":[{LARGE}],"memory_bytes":[true]}}',
    '{"kind":"memory","step":3,"owners":{"parameters":"big"},"peak_bytes":[],"limit_bytes":"x"}',
    '{"kind":"summary","sample":7,"loss":1e999}',
    '{"kind":"device","step":3,"power_w":' + LARGE + ',"utilisation":"NaN"}',
    '{"kind":"collectives","step":3,"seconds":{"all_reduce":1e999,"x":{}}}',
    "[" * 100_000,
    "null",
    '"step"',
    "7",
]


def run_with(folder, lines):
    folder.mkdir(parents=True)
    good = [json.dumps({"kind": "step", "step": step, "loss": 2.0}) for step in range(8)]
    (folder / "journal.jsonl").write_text("\n".join([*good[:7], *lines, good[7], ""]))
    return folder


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_the_page_answers_whatever_a_line_holds(number, tmp_path):
    index = JournalIndex(run_with(tmp_path / "run", [HOSTILE[number]]))
    while index.follow():
        pass
    for answer in (headline(index), run_facts(index), index.windows(0, 2**62, 100)):
        json.loads(json_response(answer).body, parse_constant=pytest.fail)
    assert index.newest["step"] == 7 and index.steps.last_step == 7


def test_one_runs_lines_do_not_end_the_reader_of_the_others(tmp_path):
    run_with(tmp_path / "bad", HOSTILE)
    other = run_with(tmp_path / "good", [])
    runs = RunList([tmp_path])
    opened = [runs.open(name) for name in runs.folders()]
    stop = threading.Event()
    reader = threading.Thread(target=runs.follow_forever, args=(stop,))
    reader.start()
    with (other / "journal.jsonl").open("a") as more:
        more.write('{"kind":"step","step":8,"loss":1.0}\n')
    for _ in range(200):
        if opened[1].steps.last_step == 8:
            break
        stop.wait(0.05)
    stop.set()
    reader.join()
    assert opened[1].steps.last_step == 8 and opened[0].steps.last_step == 7


def test_a_report_is_written_of_a_journal_with_such_lines(tmp_path, capsys):
    folder = run_with(tmp_path / "run", HOSTILE)
    assert main(["report", str(folder)]) == 0
    assert "report.html" in capsys.readouterr().out


def test_a_pipe_in_the_journals_place_is_refused_at_once(tmp_path, capsys):
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(RecordError, match="journal.jsonl is a pipe"):
        Journal(tmp_path)
    with pytest.raises(RecordError, match="cannot be read .it is a pipe."):
        list(read_journal(tmp_path))
    for command in ("report", "watch"):
        assert main([command, str(tmp_path)]) == 2
        assert "holds no run" in capsys.readouterr().err
