"""The language that is spoken, and the Chinese catalogue: it has every message of the sources, and no other."""

from __future__ import annotations

import pickle
import re
import string
import warnings
from collections.abc import Iterator

import catalogue
import jinja2
import pytest
from babel.messages.catalog import Message
from babel.messages.pofile import read_po
from jinja2 import nodes

from dlprof.words import CHINESE, ENGLISH, Said, joined, of_locale, said, shown, speaking, tr, trn

PO = catalogue.LOCALES / "zh" / "LC_MESSAGES" / "dlprof.po"


def entries() -> list[Message]:
    with PO.open("rb") as file:
        return [each for each in read_po(file, locale="zh") if each.id]


def english(entry: Message) -> str:
    return entry.id if isinstance(entry.id, str) else entry.id[0]


def chinese(entry: Message) -> str:
    return entry.string if isinstance(entry.string, str) else entry.string[0]


ENTRIES = entries()


@pytest.fixture(scope="module")
def sources() -> set[catalogue.Message]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {message for message, _ in catalogue.messages()}


def test_every_message_is_translated_and_none_is_obsolete(sources: set[catalogue.Message]) -> None:
    known = {tuple(each.id) if isinstance(each.id, list | tuple) else each.id for each in ENTRIES}
    assert known == sources, "run: python tests/catalogue.py, and translate what is new"
    assert [english(each) for each in ENTRIES if not chinese(each).strip()] == []
    assert [english(each) for each in ENTRIES if each.fuzzy] == [], "look at them, and take the mark away"
    with PO.open("rb") as file:
        assert not read_po(file).obsolete


def braces(text: str) -> set[str]:
    """What `tr` fills in."""
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def filled(text: str) -> tuple[set[str], set[str]]:
    """What jinja2 puts into a text, and all that it looks at."""
    tree = jinja2.Environment().parse(text)

    def printed(node: nodes.Node) -> Iterator[str]:
        if isinstance(node, nodes.Name):
            yield node.name
        # What is only looked at may decide on a plural.
        below = [node.expr1, node.expr2] if isinstance(node, nodes.CondExpr) else node.iter_child_nodes()
        for child in below:
            if child is not None:
                yield from printed(child)

    outputs = {name for output in tree.find_all(nodes.Output) for name in printed(output)}
    keys = {
        item.arg.value
        for item in tree.find_all(nodes.Getitem)
        if isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, str)
    }
    return outputs | keys, {name.name for name in tree.find_all(nodes.Name)} | keys


def same_placeholders(entry: Message) -> bool:
    if "{{" in english(entry) or "{%" in english(entry):
        (here, all_here), (there, all_there) = filled(english(entry)), filled(chinese(entry))
        # English words that a translation chooses between.
        chosen = {"per", "which", "how"}
        return here - chosen == there - chosen and all_there <= all_here
    # A singular may say "one" instead of the number.
    return braces(english(entry) if isinstance(entry.id, str) else entry.id[1]) == braces(chinese(entry))


def test_a_translation_has_the_placeholders_of_its_message() -> None:
    assert [english(each) for each in ENTRIES if not same_placeholders(each)] == []


def code(text: str) -> list[str]:
    lines = [line for line in text.split("\n") if line.startswith("    ")]
    # A sentence may begin behind the last of them.
    return [line if line.lstrip().startswith("{%") else line.partition("{%")[0] for line in lines]


def test_lines_to_paste_are_the_same() -> None:
    assert [english(each) for each in ENTRIES if code(english(each)) != code(chinese(each))] == []


NOT_CHINESE = {
    "half-width marks": r"[\u4e00-\u9fff][,.;:?!](?:\s|$)",
    "no space between Chinese and others": r"[\u4e00-\u9fff][A-Za-z0-9]{2}|[A-Za-z0-9]{2}[\u4e00-\u9fff]",
    "a space beside a full-width mark": r"[，。；：、（）] | [，。；：、（）]",
}


def prose(entry: Message) -> str:
    plain = re.sub(r"\{\{.*?\}\}|\{\w+\}", "x", re.sub(r"\{%.*?%\}", "\n", chinese(entry)))
    return "\n".join(line for line in plain.split("\n") if not line.startswith("    "))


@pytest.mark.parametrize("fault", NOT_CHINESE)
def test_a_translation_is_written_as_chinese_is(fault: str) -> None:
    assert [text for text in map(prose, ENTRIES) if re.search(NOT_CHINESE[fault], text)] == []


LOCALES = [
    ({}, ENGLISH),
    ({"LANG": "zh_CN.UTF-8"}, CHINESE),
    ({"LANG": "zh"}, CHINESE),
    ({"LANG": "en_US.UTF-8"}, ENGLISH),
    ({"LANG": "C"}, ENGLISH),
    ({"LANG": "de_DE.UTF-8"}, ENGLISH),
    ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, CHINESE),
    ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, ENGLISH),
    ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, ENGLISH),
    ({"LANG": "zh_CN.UTF-8", "LC_ALL": "", "LC_MESSAGES": ""}, CHINESE),
]


@pytest.mark.parametrize(("environ", "expected"), LOCALES)
def test_the_language_is_that_of_the_locale_of_messages(environ: dict[str, str], expected: str) -> None:
    assert of_locale(environ) == expected


def test_a_text_is_said_in_the_language_in_force() -> None:
    assert tr("not measured") == "not measured"
    with speaking(CHINESE):
        assert tr("not measured") == "未测到"
        assert tr("{number} ranks", number=2) == "2 个 rank"
        assert tr("a text that no catalogue has {braces}") == "a text that no catalogue has {braces}"
        assert tr("") == ""
        with pytest.raises(ZeroDivisionError), speaking(ENGLISH):
            raise ZeroDivisionError
        assert tr("not measured") == "未测到"
    assert tr("not measured") == "not measured"


def test_english_has_a_plural_and_chinese_none() -> None:
    def steps(number: int) -> str:
        return trn("{steps} step", "{steps} steps", number, steps=number)

    assert (steps(1), steps(2)) == ("1 step", "2 steps")
    with speaking(CHINESE):
        assert (steps(1), steps(2)) == ("1 步", "2 步")


def test_sentences_are_joined_as_the_language_does() -> None:
    assert joined("One.", "", "Two.") == "One. Two."
    with speaking(CHINESE):
        assert joined("一。", "", "二。") == "一。二。"


@said
def reason(what: str) -> str:
    return tr("{what} ({characters}).", what=what, characters=tr("yes"))


def test_what_a_report_holds_is_english_and_knows_the_language_in_force() -> None:
    assert type(reason("x")) is str
    with speaking(CHINESE):
        both = reason(reason("x"))
        assert both == "x (yes). (yes)."
        assert shown(both) == "x（是）。（是）。"
        again = pickle.loads(pickle.dumps(both))
        assert isinstance(again, Said)
        assert shown(again) == shown(both)
        assert shown("plain") == "plain"
    assert shown(both) == both
