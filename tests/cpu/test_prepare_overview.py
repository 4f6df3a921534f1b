"""A data set at a glance."""

from megatron_corew.data.prepare.overview import (
    BAR,
    count_lines,
    histogram,
    length_lines,
    sample_lines,
)
from tests.cpu.test_prepare_rows import question


def bars(lines: list[str]) -> list[int]:
    return [line.count("█") for line in lines]


def test_a_histogram_covers_all_values_in_bins_of_equal_width():
    lines = histogram([0, 9, 10, 19, 19, 99])
    assert len(lines) == 10
    assert [int(line.split()[-1]) for line in lines] == [2, 3, 0, 0, 0, 0, 0, 0, 0, 1]
    assert lines[0].startswith("   0 to  9 ")
    assert lines[-1].startswith("  90 to 99 ")
    assert bars(lines) == [BAR * 2 // 3, BAR, 0, 0, 0, 0, 0, 0, 0, BAR // 3]


def test_equal_values_make_one_full_bar_and_rare_ones_still_show():
    assert histogram([0, 0]) == [f"  0 to 0 {'█' * BAR}  2"]
    assert len(histogram([0, 100])) == 10
    lines = histogram([1] * 5000 + [9])
    assert "▏" in lines[9]
    assert len({len(line.rpartition(" ")[0]) for line in lines}) == 1


def test_counts_and_lengths_of_both_views():
    rows = [
        question(1, "a b c", "d e", meta={"level": "Hard"}),
        question(2, "a", None, answer=None, meta={"level": "Easy"}),
        question(3, "a b", "e", source="other"),
    ]
    assert count_lines(rows) == [
        "3 questions from other, set",
        "  2 with an answer, 2 with a rephrasing",
        "  1 Easy, 1 Hard",
    ]
    lines = length_lines(rows, lambda text: len(text.split()), "words", 2)
    assert lines[0] == "original, words: median 2, 99 % 3, longest 3, 1 over 2"
    assert "rephrased, words: median 2, 99 % 2, longest 2, 0 over 2" in lines
    assert length_lines(rows[1:2], len, "letters", None)[0].endswith("longest 1")


def test_samples_are_the_same_for_the_same_seed_and_each_shown_once():
    rows = [question(at) for at in range(30)]
    first = list(sample_lines(rows, 5, seed=1))
    assert first == list(sample_lines(rows, 5, seed=1))
    assert first != list(sample_lines(rows, 5, seed=2))
    assert len({line for line in first if "answer:" in line}) == 5
    assert len(list(sample_lines(rows, 99, seed=0))) == 90
    (_, line) = sample_lines([question(1, "x" * 900, None)], 1, seed=0)
    assert line.endswith("x…")
