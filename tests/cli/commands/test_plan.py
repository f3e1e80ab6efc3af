"""The command is tried as people type it; no device and no torch are needed."""

import argparse
import json
import re

import pytest

from stepladder.cli.commands import plan as command
from stepladder.errors import PlanError, RecordError
from stepladder.hardware import Cluster
from stepladder.plan import Plan


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(words))


def test_a_search_shows_the_best_plan_and_why_others_lose(capsys) -> None:
    assert run("llama2-7b", "--on", "8 x A100-80GB", "--batch", "64", "--tokens", "1e12") == 0
    shown = capsys.readouterr().out
    for words in (
        "6.74 B parameters",
        "Best: bf16 ",
        "memory ",
        "Why the others lose",
        "Next rung",
    ):
        assert words in shown, words
    assert "1 trillion tokens: " in shown and " MWh" in shown
    assert "Price of 1 trillion tokens, CO2 at 445 g/kWh" in shown


def test_json_holds_every_ranked_forecast(capsys) -> None:
    run("llama2-7b", "--on", "8 x A100-80GB", "--batch", "64", "--json", "--tokens", "1e9")
    table = json.loads(capsys.readouterr().out)
    best = table["ranked"][0]
    assert best["fits"] and best["memory"]["peak_bytes"] > 2**30 and best["mfu"] > 0.3
    assert best["dollars"] > 0 and table["fit"] <= table["plans"]
    assert all(plan["device_hours"] and plan["co2_kilograms"] for plan in table["ranked"])
    assert "rejected" not in table


def test_all_shows_every_loser(capsys) -> None:
    run("gpt2", "--on", "1 A100-80GB", "--batch", "8", "--json", "--all")
    table = json.loads(capsys.readouterr().out)
    assert len(table["rejected"]) == table["plans"] - table["fit"]
    assert all(loser["reason"] for loser in table["rejected"])
    run("gpt2", "--on", "1 A100-80GB", "--batch", "8", "--all")
    assert "Every plan that was left out" in capsys.readouterr().out


def test_one_plan_is_forecast(capsys) -> None:
    text = "bf16 zero3 micro=1 recompute=blocks"
    words = ("llama2-70b", "--on", "64 x A100-80GB", "--plan", text, "--batch", "64")
    assert run(*words) == 0
    shown = capsys.readouterr().out
    assert "bf16 zero3 shard=64 batch=64 micro=1 accumulate=1 recompute=blocks" in shown
    assert " GiB, fits" in shown and "nine times in ten" in shown


def test_a_forecast_whose_upper_end_passes_the_limit_says_so(capsys) -> None:
    words = ("llama3-8b", "--on", "8 H100", "--batch", "64", "--plan")
    assert run(*words, "bf16 zero2 micro=1 recompute=selective compile=on") == 0
    tight = capsys.readouterr().out
    high = float(re.search(r"between [\d.]+ and ([\d.]+) nine", tight)[1])
    limit = float(re.search(r" of ([\d.]+) GiB, fits", tight)[1])
    assert ("passes the limit" in tight) == (high > limit) is True
    assert run(*words, "bf16 zero3 micro=1 recompute=blocks") == 0
    assert "passes the limit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("llama2-7b", "--on", "8 x A100-80GB", "--plan", "bf16 zero3 micro=1 recompute=blocks"),
         "stepladder train llama2-7b --plan 'bf16 zero3 shard=8 batch=8 micro=1 accumulate=1 "
         "recompute=blocks' --model.sequence 4096 --ranks 8"),
        (("gpt2", "--on", "2 nodes x 8 H100", "--plan", "bf16 ddp micro=1"),
         "stepladder train gpt2 --plan 'bf16 replicate=16 batch=16 micro=1 accumulate=1' "
         "--model.sequence 1024 --ranks 8 --nodes 2:2 --rendezvous HOST:29400"),
        (("gpt2", "--on", "1 H100", "--plan", "bf16 micro=1"),
         "stepladder train gpt2 --plan 'bf16 batch=1 micro=1 accumulate=1' --model.sequence 1024"),
        (("resnet50", "--on", "1 H100", "--plan", "bf16 micro=8"),
         "stepladder train resnet50 --plan 'bf16 batch=8 micro=8 accumulate=1' "
         "--data.source FOLDER"),
    ],
)  # fmt: skip
def test_the_command_that_trains_with_a_plan_is_one_line(capsys, words, command) -> None:
    assert run(*words) == 0
    assert f"\n  {command}\n" in capsys.readouterr().out


def test_nothing_is_said_to_be_started() -> None:
    with pytest.raises(PlanError) as refused:
        run("gpt2", "--on", "8 H100", "--plan", "bf16 zero3 shard=4 micro=1")
    assert str(refused.value) == (
        "layout: is for 4 ranks (shard=4), and there are 8 ranks. "
        "Use 4, or leave one axis open with -1."
    )


def test_a_plan_that_does_not_fit_exits_with_one(capsys) -> None:
    assert run("llama2-70b", "--on", "8 x A100-80GB", "--plan", "bf16 ddp micro=1") == 1
    shown = capsys.readouterr().out
    assert "DOES NOT FIT" in shown and "What to change, cheapest first" in shown
    assert run("gpt2", "--on", "A100-40GB", "--plan", "fp32 micro=32 batch=32", "--json") == 1
    first = json.loads(capsys.readouterr().out)["remedies"][0]
    assert first["change"] == "bf16" and first["fits"] and first["peak_bytes"] and first["plan"]
    words = ("llama2-70b", "--on", "8 x A100-80GB", "--plan", "bf16 ddp micro=1", "--json")
    assert run(*words) == 1 and not json.loads(capsys.readouterr().out)["fits"]


def test_an_illegal_plan_is_refused_with_every_problem() -> None:
    with pytest.raises(PlanError, match="16 ways cannot cut 8 key-value heads"):
        run("llama3-8b", "--on", "2 nodes x 8 A100-80GB", "--plan", "fp8 tensor=16")


def test_nothing_that_fits_names_what_would() -> None:
    with pytest.raises(PlanError, match="The smallest that does: "):
        run("llama2-13b", "--on", "1 node x 2 A100-40GB")


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(PlanError, match="Did you mean 'llama3-8b'"):
        run("llama3-8", "--on", "8 x A100-80GB")
    with pytest.raises(PlanError, match="A100"):
        run("llama3-8b", "--on", "8 x A100-90GB")


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="0 is not a number of sequences"):
        run("gpt2", "--on", "1 A100-80GB", "--batch", "0")


def test_tokens_that_are_no_number_are_refused() -> None:
    for tokens in ("-1", "nan", "inf"):
        with pytest.raises(PlanError, match="is not a number to train on"):
            run("gpt2", "--on", "1 A100-80GB", f"--tokens={tokens}")


def test_images_are_no_tokens_and_a_little_energy_is_not_none(capsys) -> None:
    words = ("resnet50", "--on", "1 H100-80GB", "--plan", "bf16 micro=8 batch=8", "--grid", "50")
    assert run(*words, "--samples", "1e6") == 0
    shown = capsys.readouterr().out
    assert "samples/s a device" in shown and "1 million samples: " in shown
    assert "token" not in shown and re.search(r" [1-9][\d.]* Wh, [1-9][\d.]* g CO2, \$0\.", shown)
    assert run(*words, "--json") == 0
    priced = json.loads(capsys.readouterr().out)
    assert priced["samples"] == 1e6 and priced["unit"] == "samples"
    assert priced["co2_kilograms"] == pytest.approx(priced["kilowatt_hours"] * 0.05)


def test_a_grid_that_is_no_number_is_refused() -> None:
    for grid in ("-1", "nan"):
        with pytest.raises(PlanError, match="is not a number of grams of CO2 per kWh"):
            run("gpt2", "--on", "1 A100-80GB", f"--grid={grid}")


def test_a_saved_plan_is_read_back(tmp_path, capsys) -> None:
    path = tmp_path / "plan.toml"
    run("gpt2", "--on", "1 A100-80GB", "--batch", "8", "--save", str(path), "--json")
    best = json.loads(capsys.readouterr().out)["ranked"][0]["plan"]
    assert Plan.from_toml(path.read_text()) == Plan.parse(best)


def test_a_plan_that_cannot_be_saved_says_so(tmp_path) -> None:
    where = str(tmp_path / "nowhere" / "plan.toml")
    with pytest.raises(RecordError, match="cannot be written"):
        run("gpt2", "--on", "1 A100-80GB", "--batch", "8", "--save", where)


def test_a_picture_is_drawn(tmp_path, capsys) -> None:
    path = tmp_path / "plan.png"
    run("gpt2", "--on", "1 A100-80GB", "--batch", "8", "--plot", str(path))
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_device_of_unknown_speed_has_memory_but_no_time(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nobody has measured it
    assert run("gpt-tiny", "--on", "1 CPU", "--batch", "8", "--tokens", "1e6") == 0
    shown = capsys.readouterr().out
    assert "Time is unknown" in shown and "unknown time, so unknown price" in shown
    assert "Price of" not in shown
    assert "'stepladder calibrate' there measures one" in shown


def test_here_is_this_machine(capsys, monkeypatch) -> None:
    found = Cluster.parse("1 node x 2 T4")
    monkeypatch.setattr(Cluster, "detect", lambda: found)
    assert run("gpt-tiny", "--on", "here", "--batch", "8") == 0
    assert "1 node x 2 T4" in capsys.readouterr().out


def test_images_are_counted_in_samples(capsys) -> None:
    run("resnet50", "--on", "1 A100-80GB", "--plan", "fp16 micro=32")
    assert "samples/s a device" in capsys.readouterr().out


def test_a_calibration_changes_the_forecast(tmp_path, capsys) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"matrix_flops_per_second": {"bf16": 1e12}}')
    words = ("gpt2", "--on", "1 A100-80GB", "--plan", "bf16 micro=8", "--json")
    run(*words)
    usual = json.loads(capsys.readouterr().out)["time"]["matrix"]
    run(*words, "--calibration", str(path))
    assert json.loads(capsys.readouterr().out)["time"]["matrix"] > 20 * usual


def test_a_calibration_of_another_device_is_refused(tmp_path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"device": "CPU"}')
    with pytest.raises(PlanError, match="was measured on CPU, not A100-80GB"):
        run("gpt2", "--on", "1 A100-80GB", "--calibration", str(path))


def test_what_would_be_slower_is_no_next_rung(capsys):
    tiny = "gpt:layers=2,hidden=64,heads=4,vocab=256,sequence=1024"
    assert run(tiny, "--on", "8 x H100-80GB") == 0
    gains = re.findall(r"([\d.]+) times as fast", capsys.readouterr().out)
    assert gains and all(float(gain) >= 1 for gain in gains)


def test_a_mixture_names_its_active_parameters(capsys) -> None:
    words = ("mixtral-8x7b", "--sequence", "4096", "--on", "4 nodes x 8 H100-80GB")
    assert run(*words, "--plan", "bf16 zero3 micro=4 recompute=blocks") == 0
    assert "46.7 B parameters (12.9 B active), 79.7 GFLOP a token" in capsys.readouterr().out
    run(*words, "--batch", "256", "--json")
    table = json.loads(capsys.readouterr().out)
    assert (table["parameters"], table["active_parameters"]) == (46_702_792_704, 12_879_925_248)


def test_every_table_shows_the_rent_of_the_cluster_and_its_source_once(capsys) -> None:
    assert run("gpt2", "--on", "8 x H100-80GB", "--batch", "64", "--tokens", "1e12") == 0
    shown = capsys.readouterr().out
    assert "$21.52 an hour: 8 × $2.69 (RunPod list" in shown and shown.count("early 2026") == 1
    assert "$/h" in shown and shown.count("21.52  ") >= 8
    words = ("gpt2", "--on", "8 x H100-80GB", "--plan", "bf16 ddp micro=512")
    assert run(*words, "--price", "2") == 1
    shown = capsys.readouterr().out
    assert "$16.00 an hour: 8 × $2.00 (as given)" in shown
    assert "$/h" in shown and "16.00  " in shown and "32.00  " in shown  # twice the devices


def test_json_has_the_rent_the_energy_and_where_the_price_is_from(capsys) -> None:
    words = ("gpt2", "--on", "8 x H100-80GB, 500 W", "--batch", "64", "--json")
    run(*words, "--price", "3", "--tokens", "1e9")
    best = json.loads(capsys.readouterr().out)["ranked"][0]
    assert best["watts"] == 500 and best["cluster_dollars_per_hour"] == 24
    assert best["price_source"] == "as given"
    assert best["dollars"] == pytest.approx(3 * best["device_hours"])
    assert best["kilowatt_hours"] == pytest.approx(0.5 * best["device_hours"])


def test_a_device_without_a_price_asks_for_one(capsys) -> None:
    run("gpt2", "--on", "8 x H20", "--plan", "bf16 ddp micro=1")
    shown = capsys.readouterr().out
    assert "Rent unknown: the price table has none for H20; --price 2.5 counts dollars" in shown
    assert "unknown rent" in shown


def test_a_price_that_is_none_is_refused() -> None:
    with pytest.raises(PlanError, match="price: -1.0 is not a number of dollars for one device"):
        run("gpt2", "--on", "8 x H20", "--price", "-1")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--plan", ""), "plan: is empty. Write words such as 'bf16 zero3', or leave it out."),
        (("--plan", "auto tune=5"), "plan: 'auto tune=5' leaves the rest of a plan to trials on "
         "the device, and none is run here. Leave --plan out to search, or write the plan whole."),
        (("--batch", str(10**20)), "batch: 100,000,000,000,000,000,000 sequences are more than any "
         "step has. Use 1,073,741,824 or fewer."),
        (("--sequence", str(10**9)), "sequence: 1,000,000,000 tokens are more than any sequence "
         "has. Use 134,217,728 or fewer."),
    ],
)  # fmt: skip
def test_numbers_and_words_that_cannot_be_meant_are_refused(words, line) -> None:
    with pytest.raises(PlanError) as refused:
        run("gpt2", "--on", "1 H100", *words)
    assert str(refused.value) == line


def test_auto_searches_as_no_plan_does(capsys) -> None:
    assert run("gpt-tiny", "--on", "1 H100", "--batch", "8", "--plan", "auto") == 0
    assert "Best: " in capsys.readouterr().out
