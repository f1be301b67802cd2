import io
import sys

from epifalcon.cli.console import Console
from epifalcon.progress import silent


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Make standard error a terminal; to be called in the test, after capturing."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_progress_tells_what_stands_beside_the_bar(monkeypatch):
    shown = terminal(monkeypatch)
    with Console().progress() as progress:
        progress("falcon: rounds", 0, 4)
        progress("falcon: rounds", 4, 4, "loss 0.693, validation AUC 0.500")
        progress("city", 1, 2)
    for words in ("falcon: rounds", "4/4", "loss 0.693, validation AUC 0.500", "city"):
        assert words in shown.getvalue()


def test_progress_is_silent_unless_there_is_a_terminal(capsys, monkeypatch):
    shown = terminal(monkeypatch)
    with Console(quiet=True).progress() as progress:
        assert progress is silent
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Console().progress() as progress:
        assert progress is silent
        progress("rounds", 1, 2, "message")
    assert shown.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_json_has_no_word_for_what_is_not_finite(capsys):
    Console(json=True).figures({"a": float("nan"), "b": [float("inf")], "c": None})
    assert capsys.readouterr().out == '{"a": null, "b": [null], "c": null}\n'
    Console(json=True).say("for people")
    Console(quiet=True).table("title", ["a"], [["b"]])
    Console().figures({"a": 1})
    Console(quiet=True).warn("one row failed")
    assert capsys.readouterr() == ("", "epifalcon: one row failed\n")


def test_a_table_without_room_comes_in_parts_with_whole_numbers(capsys):
    columns = [f"column {place}" for place in range(14)]
    numbers = [f"{place:02}34567890.12" for place in range(14)]
    Console().table("Title", columns, [numbers])
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 120
    lines = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    assert len(lines) > 1
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines]
    assert all(line[0] == numbers[0] for line in cells)
    assert [cell for line in cells for cell in line[1:]] == numbers[1:]


def test_rows_that_two_columns_name_have_both_in_every_part(capsys):
    rows = [["same", name, *["0.123456789"] * 12] for name in ("one", "two")]
    Console().table("Title", [f"column {place}" for place in range(14)], rows)
    out = capsys.readouterr().out
    assert out.count("Title") == out.count("one") == out.count("two") > 1


def test_the_papers_figure_is_not_parted_from_ours(capsys):
    columns = ["method", *["AUC", "paper's"] * 7]
    Console().table("Title", columns, [[*["0.123456789"] * 15]])
    lines = capsys.readouterr().out.splitlines()
    heads = [
        [cell.strip() for cell in line.split("┃")[2:-1]]
        for line in lines
        if line.startswith("┃")
    ]
    assert len(heads) > 1
    assert all(head == ["AUC", "paper's"] * (len(head) // 2) for head in heads)
    # No cell is folded.
    assert "\n".join(lines).count("0.123456789 ") == 14 + len(heads)


def test_a_few_columns_of_words_are_folded_and_cells_shown_as_they_are(capsys):
    words = " ".join(["[/b] :smile:"] * 20)
    Console().table("Title", ["name", "text"], [["a", words]])
    out = capsys.readouterr().out
    assert out.count("Title") == 1
    assert out.count("[/b]") == out.count(":smile:") == 20


def test_names_cannot_control_the_terminal(capsys, monkeypatch):
    console, name = Console(), "\x1b[2J\x9b31m\u202e[/b]"
    console.say(name)
    console.note(name)
    console.warn(name)
    console.table(name, [name, "b"], [[name, name]])
    Console(json=True).figures({name: name})
    shown = "".join(capsys.readouterr())
    assert shown.count("\\u001b[2J\\u009b31m\\u202e[/b]") == 9
    assert shown.replace("\n", "").isprintable()
    bars = terminal(monkeypatch)
    with console.progress() as progress:
        progress(name, 0, 1, name)
    assert bars.getvalue().count("\\u001b[2J\\u009b31m\\u202e[/b]") >= 2
