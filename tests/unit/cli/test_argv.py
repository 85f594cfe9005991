"""Who gets which word of `dlprof run ...`."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.cli.argv import Form, RunRequest, split, take_local_rank
from dlprof.cli.options import RUN_OPTIONS
from dlprof.errors import EXIT_USAGE, UsageError

AFTER_SCRIPT = ("--steps", "--trace-steps")


def test_script_with_its_arguments() -> None:
    assert split(["train.py", "--lr", "0.1"]) == RunRequest((), Form.SCRIPT, "train.py", ("--lr", "0.1"))


def test_options_before_the_script() -> None:
    request = split(["--steps", "7", "--out=a=b", "--force", "train.py"])
    assert request.options == ("--steps=7", "--out=a=b", "--force")
    assert (request.target, request.arguments, request.taken) == ("train.py", (), ())


@pytest.mark.parametrize("words", [["--steps", "7"], ["--steps=7"]])
def test_steps_directly_after_the_script(words: list[str]) -> None:
    request = split(["train.py", *words, "--lr", "1"])
    assert request == RunRequest(("--steps=7",), Form.SCRIPT, "train.py", ("--lr", "1"), tuple(words))


def test_both_options_after_a_module() -> None:
    request = split(["-m", "pkg.train", "--trace-steps=3", "--steps", "all", "x"])
    assert request.options == ("--trace-steps=3", "--steps=all")
    assert (request.form, request.target, request.arguments) == (Form.MODULE, "pkg.train", ("x",))


@pytest.mark.parametrize(
    "tail",
    [
        ["--lr", "1", "--steps", "7"],  # after another word all is the script's
        ["--out", "d"],  # scripts own names like these
        ["--warmup", "1"],
        ["--format", "png"],
        ["--force"],
        ["--help"],
        ["-h"],
        ["-m", "x"],
        ["--step", "7"],  # no abbreviations
        ["--steps"],  # not of the form that is taken
        ["--steps-per-epoch", "7"],
        ["-", "x"],
        ["", "--steps", "7"],
    ],
)
def test_left_to_the_script(tail: list[str]) -> None:
    request = split(["train.py", *tail])
    assert (request.options, request.arguments, request.taken) == ((), tuple(tail), ())


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        (["--out", "d"], "--out"),
        (["--format=png"], "--format"),
        (["--steps", "7", "--force"], "--force"),
        (["--lr", "1", "--out", "d"], ""),
        (["--", "--out", "d"], ""),
        (["--output", "d"], ""),
        ([], ""),
    ],
)
def test_an_option_of_ours_directly_after_the_script_is_noticed_and_left(tail: list[str], left: str) -> None:
    assert split(["train.py", *tail]).left == left


def test_an_option_given_before_is_the_scripts_after() -> None:
    request = split(["--steps", "5", "train.py", "--steps", "9"])
    assert (request.options, request.arguments) == (("--steps=5",), ("--steps", "9"))


def test_an_option_is_taken_once() -> None:
    request = split(["train.py", "--steps", "5", "--steps", "9"])
    assert (request.options, request.arguments) == (("--steps=5",), ("--steps", "9"))


def test_two_dashes_end_dlprofs_part_and_are_dropped_once() -> None:
    assert split(["train.py", "--", "--steps", "9"]).arguments == ("--steps", "9")
    assert split(["train.py", "--", "--", "x"]).arguments == ("--", "x")
    request = split(["train.py", "--steps", "5", "--", "--steps", "9"])
    assert (request.options, request.arguments) == (("--steps=5",), ("--steps", "9"))


def test_two_dashes_later_are_the_scripts() -> None:
    assert split(["train.py", "x", "--", "y"]).arguments == ("x", "--", "y")


def test_nothing_is_taken_from_a_command() -> None:
    request = split(["--steps", "5", "--", "torchrun", "--steps", "9", "--", "--help"])
    assert (request.form, request.options, request.target) == (Form.COMMAND, ("--steps=5",), "torchrun")
    assert request.arguments == ("--steps", "9", "--", "--help")


def test_what_is_started() -> None:
    assert split(["train.py", "x"]).command == [sys.executable, "train.py", "x"]
    assert split(["-m", "pkg", "x"]).command == [sys.executable, "-m", "pkg", "x"]
    assert split(["--", "bash", "train.sh"]).command == ["bash", "train.sh"]


@pytest.mark.parametrize("word", ["--local_rank=3", "--local-rank=3"])
def test_local_rank_before_run_becomes_the_scripts_first_argument(word: str) -> None:
    local_rank, rest = take_local_rank([word, "run", "train.py", "--steps", "5", "x"])
    assert rest[0] == "run"
    request = split(rest[1:], local_rank)
    assert (request.options, request.arguments) == (("--steps=5",), (word, "x"))


def test_local_rank_elsewhere_is_nothing_special() -> None:
    assert take_local_rank(["run", "--local_rank=3"]) == (None, ["run", "--local_rank=3"])
    assert take_local_rank(["--local_rank=3", "report"]) == (None, ["--local_rank=3", "report"])
    assert take_local_rank(["--local_rank=3"]) == (None, ["--local_rank=3"])


@pytest.mark.parametrize("argv", [["--help"], ["-h", "train.py"], ["--steps", "5", "--help"]])
def test_help_is_dlprofs_before_the_script(argv: list[str]) -> None:
    request = split(argv)
    assert (request.form, request.options[-1]) == (Form.HELP, "--help")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "nothing to run"),
        (["--steps", "5"], "nothing to run"),
        (["--"], "COMMAND is missing"),
        (["-m"], "-m needs the name"),
        (["--steps"], "--steps needs a value"),
        (["--stepz", "5", "train.py"], "no option --stepz"),
        (["--lr=0.1", "train.py"], "no option --lr"),
        (["-x", "train.py"], "no option -x"),
        (["--force=1", "train.py"], "--force takes no value"),
    ],
)
def test_refused(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        split(argv)
    assert caught.value.status == EXIT_USAGE
    assert caught.value.hint


@pytest.mark.parametrize(
    "name",
    ["--stall-timeout"],
)
def test_options_of_later_versions_are_unknown(name: str) -> None:
    with pytest.raises(UsageError, match=f"no option {name}"):
        split([name, "x", "train.py"])


def test_local_rank_needs_a_script() -> None:
    with pytest.raises(UsageError, match="COMMAND is not one"):
        split(["--", "bash", "train.sh"], "--local_rank=0")


def own_options() -> st.SearchStrategy[list[str]]:
    """dlprof's options as somebody may type them before SCRIPT."""
    value = st.text(max_size=5)
    one = [
        st.just([row.name])
        if row.type is None
        else st.tuples(st.just(row.name), value).map(list) | value.map(lambda text, row=row: [f"{row.name}={text}"])
        for row in RUN_OPTIONS
    ]
    return st.lists(st.one_of(one), max_size=4).map(lambda options: [word for option in options for word in option])


def words() -> st.SearchStrategy[list[str]]:
    """Anything that may follow SCRIPT, likely to look like ours."""
    ours = ["--", "-m", "--help", "all", "5", *(row.name for row in RUN_OPTIONS)]
    joined = [f"{row.name}=5" for row in RUN_OPTIONS]
    return st.lists(st.sampled_from(ours + joined) | st.text(max_size=6), max_size=8)


@given(own_options(), st.sampled_from([["train.py"], ["-m", "train"]]), words())
def test_nothing_is_lost_or_moved(before: list[str], target: list[str], after: list[str]) -> None:
    request = split([*before, *target, *after])
    assert request.target == target[-1]
    dropped = after[len(request.taken) : len(after) - len(request.arguments)]
    assert dropped in ([], ["--"])
    assert [*request.taken, *dropped, *request.arguments] == after
    from_after = request.options[len(split([*before, *target]).options) :]
    names = [option.partition("=")[0] for option in from_after]
    assert set(names) <= set(AFTER_SCRIPT)
    assert len(set(names)) == len(names)


@given(own_options(), words(), st.text(min_size=1, max_size=5))
def test_a_command_keeps_every_word(before: list[str], after: list[str], command: str) -> None:
    request = split([*before, "--", command, *after])
    assert (request.target, list(request.arguments), request.taken) == (command, after, ())


@given(words())
def test_after_two_dashes_the_script_gets_every_word(after: list[str]) -> None:
    request = split(["train.py", "--", *after])
    assert (request.options, list(request.arguments)) == ((), after)


def test_an_option_that_may_be_given_several_times_is() -> None:
    request = split(["--span", "data:load", "--span=train:Set.__getitem__", "train.py", "--span", "the:scripts"])
    assert request.options == ("--span=data:load", "--span=train:Set.__getitem__")
    assert request.arguments == ("--span", "the:scripts")


def test_tune_has_options_of_its_own() -> None:
    request = split(["--trials", "3", "--budget=10m", "train.py", "--steps", "9", "--lr", "1"], verb="tune")
    assert request.options == ("--trials=3", "--budget=10m", "--steps=9")
    assert (request.target, request.arguments, request.taken) == ("train.py", ("--lr", "1"), ("--steps", "9"))
    with pytest.raises(UsageError, match="dlprof tune has no option --fail-if"):
        split(["--fail-if", "x>1", "train.py"], verb="tune")
    with pytest.raises(UsageError, match="dlprof run has no option --trials"):
        split(["--trials", "3", "train.py"])
