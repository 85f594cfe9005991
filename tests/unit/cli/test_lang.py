"""The language of a command: ``--lang``, else the locale."""

from __future__ import annotations

import pytest
from rich.console import Console

from dlprof.cli.main import main
from dlprof.cli.summary import MOST_LINES, summary_lines
from dlprof.render import Summary
from dlprof.words import ENGLISH, language

COMMANDS = ("run", "report", "compare", "explain", "tune", "analyze")


@pytest.fixture(autouse=True)
def english_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "en_US.UTF-8")


def test_explain_speaks_the_language_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "raise-num-workers", "--lang", "zh"]) == 0
    assert "用更多 worker 进程并行准备 batch。" in capsys.readouterr().out
    assert language() == ENGLISH
    assert main(["explain", "raise-num-workers"]) == 0
    assert "More worker processes make batches side by side." in capsys.readouterr().out


def test_without_lang_it_is_that_of_the_locale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert main(["explain", "raise-num-workers"]) == 0
    assert "用更多 worker 进程并行准备 batch。" in capsys.readouterr().out
    assert main(["explain", "raise-num-workers", "--lang", "en"]) == 0
    assert "More worker processes" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--lang", "zh", "run-that-is-not"], ["run-that-is-not", "--lang=zh"]])
def test_errors_are_in_that_language(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 70
    assert "dlprof: 没有这个运行：run-that-is-not" in capsys.readouterr().err


def test_run_takes_it_before_the_script_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--lang", "zh", "script-that-is-not.py", "--lang", "fr"]) == 2
    assert "dlprof: 没有这个脚本：script-that-is-not.py" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_language_that_there_is_not_is_a_usage_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--lang", "fr", "x", "y"][: 5 if command == "compare" else 4]) == 2
    said = capsys.readouterr().err
    assert "--lang: 'fr' is not one of 'en', 'zh'" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_of_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--lang en|zh" in capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 80, 120])
def test_chinese_lines_are_not_wider_than_the_terminal(width: int) -> None:
    summary = Summary(
        headline="CPU 预处理是瓶颈：训练循环在等 tokenizer，占每步的 58 %（61.9 ms 中的 36.1 ms），主要在 a.py:1。",
        bar=(("等待数据", 0.6), ("计算", 0.3), ("训练循环中的 Python", 0.1)),
        advice=("把 num_workers 从 0 增加到 2：加速 1.6 倍", "    DataLoader(..., num_workers=2)"),
        gains=True,
        notices=("测到的步数很少。达到 30 步，结论才可能有高置信度。" * 3,),
        path="x/report.html",
    )
    lines = summary_lines(summary, (), Console(width=width))
    assert len(lines) <= MOST_LINES
    assert max(line.cell_len for line in lines) < width + 1
    assert not [line for line in lines if line.plain[:1] in set("，。：）")]
