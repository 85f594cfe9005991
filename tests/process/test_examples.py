"""The examples as a user starts them: they end well, and the seed alone decides what is trained."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "train_text.py": "--documents 40 --characters 2000 --vocabulary 512 --length 16 --layers 1 --width 32",
    "train_images.py": "--images 24 --size 32",
}
NEEDS = {"train_text.py": ["torch", "tokenizers"], "train_images.py": ["torch", "PIL", "sklearn"]}


def trained(script: str, cache: Path, *options: str) -> list[str]:
    """What a good run printed about its training: the losses, and the checksum of the weights."""
    for module in NEEDS[script]:
        pytest.importorskip(module)
    common = "--batch-size 4 --steps 4 --log-every 2 --device cpu"
    command = [sys.executable, str(EXAMPLES / script), *TINY[script].split(), *common.split(), *options]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("weights sha256 ")
    losses = [line.split("  ")[1] for line in lines if line.startswith("step ")]
    assert len(losses) == 2
    return [*losses, lines[-1]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def plain(cache: Path) -> Callable[[str], list[str]]:
    """What a run with the defaults trained: each script is run once for all tests."""
    return functools.cache(lambda script: trained(script, cache))


@pytest.mark.parametrize("script", TINY)
def test_seed_decides_weights_whatever_the_workers(script: str, plain, cache: Path):
    expected = plain(script)
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert trained(script, cache, "--workers", "2") == expected
    # What the first start made is whole and is used again, and nothing else is left.
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()} == made
    assert not list(cache.rglob("tmp*"))


def test_another_seed_gives_other_weights(plain, cache: Path):
    assert trained("train_text.py", cache, "--seed", "1")[-1] != plain("train_text.py")[-1]


@pytest.mark.parametrize("options", ["collate --workers 2", "ahead --workers 1"])
def test_text_is_the_same_wherever_it_is_tokenized(options: str, plain, cache: Path):
    assert trained("train_text.py", cache, "--tokenize", *options.split()) == plain("train_text.py")


def advice(name: str, to: int | None = None, speedup: list[float] | None = None) -> dict:
    setting = "num_workers" if to is not None else None
    return {"id": name, "setting": setting, "from": None, "to": to, "speedup": speedup}


def report(mean_ms: float, advices: list[dict], forecasts: list[dict] | None = None) -> dict:
    return {
        "step": {"mean_ms": mean_ms},
        "verdict": {
            "bottleneck": "cpu_preprocessing",
            "component": "tokenizer",
            "share": 0.62,
            "confidence": "high",
        },
        "notices": [{"slug": "drift", "count": 1, "text": f"drifted from {mean_ms}"}],
        "forecast": forecasts or [],
        "advice": advices,
    }


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demo_maps_advice_onto_options(demo):
    assert demo.script_options(advice("raise-num-workers", to=2)) == ["--workers", "2"]
    assert demo.script_options(advice("lower-num-workers", to=1)) == ["--workers", "1"]
    assert demo.script_options(advice("pretokenize-dataset")) == ["--tokenize", "ahead"]
    assert demo.script_options(advice("pin-memory")) is None


def test_demo_takes_the_forecast_or_the_speedup(demo):
    told = advice("raise-num-workers", to=2, speedup=[1.25, 2.0, 4.0])
    entry = {"setting": "num_workers", "from": 0, "to": 2, "step_ms": [30.0, 40.0, 60.0]}
    assert demo.forecast(report(100.0, [told], [entry | {"to": 1}, entry]), told) == [30.0, 40.0, 60.0]
    assert demo.forecast(report(100.0, [told], [entry | {"to": 1}]), told) == [25.0, 50.0, 80.0]
    assert demo.forecast(report(100.0, [], [entry]), advice("pin-memory")) is None


def run_demo(folder: Path, reports: list[dict | None]) -> subprocess.CompletedProcess[str]:
    """The demo with a stand-in for dlprof that hands out ready-made reports; None is a run that fails."""
    package = folder / "dlprof"
    package.mkdir()
    (package / "__init__.py").touch()
    for number, ready in enumerate(reports):
        (folder / f"{number}.json").write_text(json.dumps(ready))
    (package / "__main__.py").write_text(
        "import json, pathlib, sys\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n"
        "ready = sorted(pathlib.Path().glob('*.json'))[0]\n"
        "text = ready.read_text()\n"
        "ready.unlink()\n"
        "print('ran with', *sys.argv[5:], flush=True)\n"
        "if text == 'null':\n"
        "    sys.exit(70)\n"
        "out.mkdir()\n"
        "(out / 'report.json').write_text(text)\n"
        "(out / 'report.html').write_text('')\n"
    )
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_demo_follows_the_first_advice_it_can(tmp_path: Path):
    first = report(70.0, [advice("pin-memory"), advice("raise-num-workers", to=2, speedup=[1.4, 1.75, 2.0])])
    result = run_demo(tmp_path, [first, report(40.0, [])])
    assert result.returncode == 0, result.stderr
    assert "no option for the advice pin-memory" in result.stdout
    assert "ran with --steps 50 --workers 2" in result.stdout
    assert "40.0 ms (35.0 to 50.0)" in result.stdout
    assert "1.75 times as fast" in result.stdout
    assert "cpu_preprocessing / tokenizer, 62% of the step (high confidence)" in result.stdout
    assert "before: drifted from 70.0\nafter: drifted from 40.0\n" in result.stdout
    assert (tmp_path / result.stdout.splitlines()[-1]).name == "report.html"
    assert (tmp_path / result.stdout.splitlines()[-1]).is_file()


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        ([None], "the run ended with status 70"),
        ([report(70.0, [advice("pin-memory")])], "no advice that train_text.py has an option for"),
        ([report(70.0, [advice("pretokenize-dataset")]), report(71.0, [])], "did not make the step faster"),
    ],
)
def test_demo_says_what_went_wrong(tmp_path: Path, reports: list, message: str):
    result = run_demo(tmp_path, reports)
    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_long_texts_are_trained_on_one_at_a_time():
    pytest.importorskip("tokenizers")
    command = [sys.executable, str(EXAMPLES / "finetune_text.py"), "--texts", "16", "--characters", "500"]
    command += ["--micro-batches", "2", "--steps", "6", "--device-ms", "0", "--workers", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert "optimizer steps/s, loss" in result.stdout
