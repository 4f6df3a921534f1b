r"""Time votes and rewards against pairwise math-verify on the same answers.

    python benchmarks/votes.py --answers MATH --answers DAPO --out votes.json

Both sides get groups of responses: right answers in several spellings, wrong ones, none. The rival
votes by math-verify alone: it parses both responses of every pair of a group and verifies them, as
reward functions do. A second, thrifty rival parses every distinct response once and skips pairs
that are joined already. Where math-verify contradicts itself (not symmetric or not transitive)
there is nothing to agree with. Prints JSON.
"""

import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from megatron_corew.answers.boxes import last_boxed
from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.answers.keys import canonical_key
from megatron_corew.answers.voting import Components, vote

TIE = "abstain"
BUILT_IN = (
    *("17", "-3", "0.25", "1024", "\\frac{7}{12}", "3.5", "1,250", "90^\\circ", "50\\%", "144"),
    *("2\\sqrt{3}", "\\frac{\\sqrt{2}}{2}", "5\\pi", "x^2+2x+1", "(-\\infty,3)", "3x-7", "(2,-1)"),
    *("\\frac{1+\\sqrt{5}}{2}", "\\{1,2\\}", "y=2x+1", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    *("[0,1)\\cup(2,5]", "\\frac{3}{4}-\\frac{1}{4}i", "6\\sqrt{6}", "\\sin^2 t", "\\text{even}"),
)


def main(
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="Parquet file or folder with true answers, repeatable; none: built in"),
    ] = None,
    count: Annotated[int, typer.Option(help="Responses in all")] = 2048,
    group: Annotated[int, typer.Option(help="Responses per question")] = 8,
    algebra: Annotated[float, typer.Option(help="Share of questions that need algebra")] = 0.3,
    workers: Annotated[int, typer.Option(help="math-verify processes of ours")] = 1,
    seed: int = 0,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here too")] = None,
) -> None:
    """Measure and compare."""
    result = measure(
        [answer for path in answers for answer in read_answers(path)] if answers else BUILT_IN,
        count=count,
        group=group,
        algebra=algebra,
        workers=workers,
        seed=seed,
    )
    text = json.dumps(result, indent=1, ensure_ascii=False)
    print(text)
    if out:
        out.write_text(text + "\n")


def read_answers(path: Path) -> list[str]:
    """The distinct true answers of parquet files, in a fixed order."""
    import pyarrow.parquet as pq

    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    found: dict[str, None] = {}
    for file in files:
        for row in pq.read_table(file).to_pylist():
            value = row.get("answer") or (row.get("reward_model") or {}).get("ground_truth")
            if value is not None and str(value).strip():
                found[str(value)] = None
    if not found:
        raise SystemExit(f"--answers: need a column answer or reward_model, got none in {path}.")
    return list(found)


def measure(
    pool: Sequence[str], *, count: int, group: int, algebra: float, workers: int, seed: int
) -> dict[str, Any]:
    """Make the groups, run both sides, compare their rewards."""
    groups = make_groups(pool, count // group, group, algebra, seed)
    texts = [[_response(answer) for answer in answers] for answers in groups]
    with AnswerJudge(
        equivalence="math",
        tie=TIE,
        min_share=0.0,
        verify_timeout_s=30.0,
        verify_workers=workers,
        verify_memory_mb=2048,
        extractors=("boxed",),
    ) as judge:
        judge.correctness([["\\boxed{x<2}"]], ["x<1"])  # starts the process
        judge.statistics()
        _forget()
        started = time.perf_counter()
        votes = judge.votes(texts)
        rewards = judge.agreement(texts, [each.label for each in votes])
        ours_s = time.perf_counter() - started
        calls = judge.statistics()
        started = time.perf_counter()
        judge.agreement(texts, [each.label for each in judge.votes(texts)])
        again_s = time.perf_counter() - started
    thrifty, usual = Rival(thrifty=True), Rival(thrifty=False)
    thrifty_s, theirs = _timed(thrifty, texts)
    usual_s, _ = _timed(usual, texts)
    consistent = [is_consistent(answers) for answers in texts]
    differing = [
        {"answers": answers, "ours": ours, "math_verify": other}
        for answers, ours, other, usable in zip(groups, rewards, theirs, consistent, strict=True)
        if usable and ours != other
    ]
    return {
        "responses": sum(map(len, groups)),
        "groups": len(groups),
        "algebra_share": algebra,
        "ours_s": round(ours_s, 3),
        "ours_again_s": round(again_s, 3),
        "pairwise_math_verify_s": round(usual_s, 3),
        "thrifty_math_verify_s": round(thrifty_s, 3),
        "ratio": round(usual_s / ours_s, 1),
        "ratio_to_thrifty": round(thrifty_s / ours_s, 1),
        "our_math_verify_calls": int(calls["comparisons"]),
        "pairwise_math_verify_calls": usual.calls,
        "thrifty_math_verify_calls": thrifty.calls,
        "consistent_groups": sum(consistent),
        "same_labels": sum(consistent) - len(differing),
        "disagreements": differing,
    }


def _forget() -> None:
    """Empty the memories of keys, so that a step is timed as if it were the first."""
    from megatron_corew.answers import keys, probing

    keys._cached_key.cache_clear()
    probing.probe.cache_clear()


def _response(answer: str | None) -> str:
    return "I do not know." if answer is None else f"So the answer is $\\boxed{{{answer}}}$."


def make_groups(
    pool: Sequence[str], questions: int, size: int, algebra: float, seed: int
) -> list[list[str | None]]:
    """Groups of answers as a policy gives them: right ones respelled, wrong ones, none."""
    rng = random.Random(seed)
    kinds = {answer: canonical_key(answer) for answer in pool}
    plain = [a for a, key in kinds.items() if key and key.kind in ("number", "choice", "word")]
    hard = [a for a, key in kinds.items() if key and a not in set(plain)]
    groups = []
    for at in range(questions):
        own = hard if hard and (at < questions * algebra or not plain) else plain
        truth, skill = rng.choice(own), rng.uniform(0.2, 0.9)
        wrong = [_wrong(truth, own, rng) for _ in range(3)]
        answers: list[str | None] = []
        for _ in range(size):
            if rng.random() < 0.04:
                answers.append(None)
            else:
                answer = truth if rng.random() < skill else rng.choice(wrong)
                answers.append(_respelled(answer, rng))
        groups.append(answers)
    rng.shuffle(groups)
    return groups


def _wrong(truth: str, own: Sequence[str], rng: random.Random) -> str:
    digits = [place for place, letter in enumerate(truth) if letter in "123456789"]
    if not digits or rng.random() < 0.05:
        return rng.choice(own)
    place = rng.choice(digits)
    other = rng.choice([digit for digit in "123456789" if digit != truth[place]])
    return truth[:place] + other + truth[place + 1 :]


def _respelled(answer: str, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return answer
    sums = re.fullmatch(r"([^-+=<>,;&(){}\\]+)\+([^-+=<>,;&(){}\\]+)", answer)
    ways = [
        lambda: answer.replace("\\frac", "\\dfrac"),
        lambda: f" {answer} ",
        lambda: answer.replace("+", " + ").replace("-", " - ").replace("=", " = "),
        lambda: re.sub(r"(?<!\\left)\(([^()]*)(?<!\\right)\)", r"\\left(\1\\right)", answer),
        lambda: re.sub(r"\\frac\{(\d+)\}\{(\d+)\}$", r"\1/\2", answer),
        lambda: re.sub(r"^(\d+)$", r"\1.0", answer),
        lambda: re.sub(r"^\\frac\{\\sqrt\{(\d+)\}\}\{\1\}$", r"\\frac{1}{\\sqrt{\1}}", answer),
        lambda: re.sub(r"^(\d+)\\pi$", r"\\pi\\cdot\1", answer),
        lambda: re.sub(r"^(\d)\\sqrt\{(\d+)\}$", _under_the_root, answer),
        lambda: f"{sums[2]}+{sums[1]}" if sums else answer,
        lambda: f"x = {answer}" if re.fullmatch(r"-?\d+", answer) else answer,
        # math-verify does not read 5. as a number, so this one is rare.
        lambda: f"{answer}." if answer[-1:].isdigit() and rng.random() < 0.1 else answer,
    ]
    return rng.choice(ways)()


def _under_the_root(match: re.Match[str]) -> str:
    return f"\\sqrt{{{int(match[1]) ** 2 * int(match[2])}}}"


@dataclass
class Rival:
    """Votes and rewards by math-verify on the whole responses."""

    thrifty: bool
    """Parse once, and skip pairs that are joined already."""
    calls: int = 0

    def rewards(self, texts: Sequence[str]) -> list[float]:
        """Vote, then compare every response with the label."""
        stated = [last_boxed(text) is not None for text in texts]
        boxed = [text for text, has_box in zip(texts, stated, strict=True) if has_box]
        if self.thrifty:
            joined = Components(boxed, self._equal)
        else:
            same = {pair: self._equal(*pair) for pair in combinations(boxed, 2)}
            joined = Components(boxed, lambda a, b: same[a, b])
        spelled = [text if has_box else None for text, has_box in zip(texts, stated, strict=True)]
        roots = [None if text is None else joined.root(text) for text in spelled]
        label = vote(spelled, roots, tie=TIE, min_share=0.0).label
        return [
            float(label is not None and text is not None and self._equal(label, text))
            for text in spelled
        ]

    def _equal(self, gold: str, answer: str) -> bool:
        from math_verify import parse, verify

        self.calls += 1
        return _verdict(gold, answer) if self.thrifty else verify(parse(gold), parse(answer))


def _timed(rival: Rival, texts: Sequence[Sequence[str]]) -> tuple[float, list[list[float]]]:
    started = time.perf_counter()
    rewards = [rival.rewards(group) for group in texts]
    return time.perf_counter() - started, rewards


def is_consistent(texts: Sequence[str]) -> bool:
    """Whether math-verify's verdicts on a group are symmetric and transitive."""
    distinct = list(dict.fromkeys(text for text in texts if last_boxed(text) is not None))
    joined = Components(distinct, _verdict)
    return all(
        _verdict(a, b) == _verdict(b, a) == (joined.root(a) == joined.root(b))
        for a, b in combinations(distinct, 2)
    )


def _verdict(gold: str, answer: str) -> bool:
    from math_verify import verify

    return bool(verify(_parsed(gold), _parsed(answer)))


@cache
def _parsed(text: str) -> Any:
    from math_verify import parse

    return parse(text)


if __name__ == "__main__":
    typer.run(main)
