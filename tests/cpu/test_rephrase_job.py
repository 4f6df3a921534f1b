"""A rephrasing job against a small HTTP server: ask, check, ask again, give up, go on."""

import re
import threading
from pathlib import Path

import pytest

from megatron_corew.config import AnswersConfig
from megatron_corew.data.prepare.schema import PreparedRow, user_message
from megatron_corew.data.rephrase import client
from megatron_corew.data.rephrase.job import Rephrased
from megatron_corew.data.rephrase.journal import Journal
from megatron_corew.data.rephrase.service import rephrase_all
from megatron_corew.data.rephrase.settings import RephraseConfig
from megatron_corew.judges import judge_of
from tests.cpu.fake_openai import FakeOpenAI, asked, serving


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.0)
    monkeypatch.delenv(client.API_KEY, raising=False)


def rows(count: int) -> list[PreparedRow]:
    return [
        PreparedRow(
            id=f"set-{at}",
            source="set",
            messages=user_message(f"Tom has {at + 20} apples and eats 5. How many are left?"),
            answer=None,
            rephrased_messages=None,
            meta={},
        )
        for at in range(count)
    ]


def number_in(body: dict) -> str:
    return re.findall(r"\d\d", asked(body))[0]


def sound(body: dict) -> list[str]:
    """A rephrasing that stands every check."""
    return [f"Ann owns {number_in(body)} pears and sells 5 of them: how many does she keep?"]


def recipe(**sections) -> RephraseConfig:
    values = {
        "model": "models/rewriter",
        "prompt": {"template": "Say anew: {question}"},
        "concurrency": 4,
        "tries": 3,
    }
    return RephraseConfig.model_validate(values | sections)


def rephrase(fake: FakeOpenAI, questions: list[PreparedRow], path: Path, **sections) -> Rephrased:
    """Run a whole job; ``path`` is the folder of its journal."""
    judge = judge_of(AnswersConfig(verify_workers=1))
    with Journal(path / "attempts.jsonl") as journal, judge:
        return rephrase_all(
            recipe(**sections),
            questions,
            journal,
            judge,
            address=fake.address,
            post_mortem=lambda: "",
            on_done=lambda accepted: None,
        )


def test_every_question_gets_its_own_rephrasing_in_the_order_of_the_data(tmp_path):
    with serving(sound) as fake:
        done = rephrase(fake, rows(9), tmp_path)
    assert [row.id for row in done.rows] == [f"set-{at}" for at in range(9)]
    for at, row in enumerate(done.rows):
        assert f"owns {at + 20} pears" in row.rephrasing
        assert row.question == rows(9)[at].question
    assert (done.asked, done.faults, done.quarantined) == (9, {}, ())
    body = fake.bodies[0]
    assert body["model"] == "/somewhere/rewriter"
    assert (body["n"], body["temperature"], body["top_p"], body["max_tokens"]) == (
        1,
        0.7,
        0.8,
        20480,
    )
    assert asked(body).startswith("Say anew: Tom has")
    assert len({body["seed"] for body in fake.bodies}) == 9
    assert "chat_template_kwargs" not in body


def test_requests_are_under_way_together_and_never_more_than_allowed(tmp_path):
    together = threading.Barrier(4)
    running, most, lock = 0, 0, threading.Lock()

    def answer(body):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(timeout=30)
        with lock:
            running -= 1
        return sound(body)

    with serving(answer) as fake:
        assert len(rephrase(fake, rows(12), tmp_path).rows) == 12
    assert most == 4


def test_a_fault_is_tried_again_with_another_seed_and_given_up_at_last(tmp_path):
    bad = iter(["<rewritten question>", "Ann owns some pears and sells 5: how many are kept?"])

    def answer(body):
        if number_in(body) == "21":
            return ["<rewritten question>"]
        return [next(bad, sound(body)[0])]

    with serving(answer) as fake:
        done = rephrase(fake, rows(2), tmp_path, concurrency=1)
    assert [row.id for row in done.rows] == ["set-0"]
    assert done.rows[0].rephrasing == sound(fake.bodies[0])[0]
    (lost,) = done.quarantined
    assert (lost.id, lost.reason) == ("set-1", "rephrasing placeholder")
    assert lost.detail == "3 attempts, the last: <rewritten question>"
    assert done.faults == {"placeholder": 4, "numbers lost": 1}
    assert done.asked == len({body["seed"] for body in fake.bodies}) == 6


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        ("no box", "numbers lost", "lost: 20, 5"),
        ("", "missing", ""),
        (rows(1)[0].question, "identical", "Tom has"),
        ("Ann: 20 - 5", "too short", "20 - 5"),
        ("安有20个梨 卖掉5个 还剩几个 她家里一共还有多少个", "another language", "安"),
    ],
)
def test_what_comes_back_is_checked_like_what_comes_in_a_file(tmp_path, text, reason, detail):
    with serving(lambda body: [text]) as fake:
        done = rephrase(fake, rows(1), tmp_path, check={"attempts": 1})
    assert not done.rows
    assert done.quarantined[0].reason == f"rephrasing {reason}"
    assert detail in done.quarantined[0].detail


def test_an_answer_without_markers_or_cut_off_is_no_rephrasing(tmp_path):
    prompt = {"template": "{question}", "start": "REWRITE:"}
    with serving(sound) as fake:
        done = rephrase(fake, rows(1), tmp_path, prompt=prompt)
        assert done.faults == {"no result between the markers": 3}
        fake.finish_reason = "length"
        done = rephrase(fake, rows(1), tmp_path)
    assert done.faults == {"cut off at the longest length": 3}


def test_a_request_that_the_server_refuses_costs_one_question_only(tmp_path):
    with serving(lambda body: 400 if number_in(body) == "21" else sound(body)) as fake:
        done = rephrase(fake, rows(3), tmp_path)
    assert [row.id for row in done.rows] == ["set-0", "set-2"]
    assert done.quarantined[0].reason == "rephrasing refused by the server"
    assert "the server says 400" in done.quarantined[0].detail


def test_a_busy_server_is_asked_again(tmp_path):
    busy = iter([503, 429])
    with serving(lambda body: next(busy, None) or sound(body)) as fake:
        done = rephrase(fake, rows(1), tmp_path)
    assert len(done.rows) == 1
    assert done.asked == 1
    assert len(fake.bodies) == 3
    assert len({body["seed"] for body in fake.bodies}) == 1


def test_a_job_that_lost_its_server_goes_on_where_it_stopped(tmp_path):
    # Two answers, one of them refused; then the server is gone in the middle of a question.
    served = iter([True, False])

    def dying(body):
        good = next(served, None)
        return 500 if good is None else sound(body) if good else ["<rewritten question>"]

    with serving(dying) as fake, pytest.raises(RuntimeError, match=r"status 500.*goes on"):
        rephrase(fake, rows(5), tmp_path, concurrency=1)
    with serving(sound) as fake:
        done = rephrase(fake, rows(5), tmp_path, concurrency=1)
        assert [number_in(body) for body in fake.bodies] == ["21", "22", "23", "24"]
        assert done.asked == 4
        seeds = [body["seed"] for body in fake.bodies]
        again = rephrase(fake, rows(5), tmp_path, concurrency=1)
        assert again.rows == done.rows
        assert again.asked == 0
    # An uninterrupted job of the same answers has the same seeds and the same rows.
    served = iter([True, False, True, True, True, True])
    with serving(dying) as fake:
        whole = rephrase(fake, rows(5), tmp_path / "whole", concurrency=1)
    assert whole.rows == done.rows
    assert [body["seed"] for body in fake.bodies][2:] == seeds


def test_a_changed_question_or_prompt_is_asked_anew_and_more_attempts_go_on(tmp_path):
    with serving(sound) as fake:
        rephrase(fake, rows(1), tmp_path)
        assert rephrase(fake, rows(1), tmp_path, sampling={"seed": 5}).asked == 1
        assert (
            rephrase(fake, rows(1), tmp_path, prompt={"template": "Again: {question}"}).asked == 1
        )
        changed = rows(1)[0].question.replace("Tom", "Tim")
        (row,) = rows(1)
        row = PreparedRow(**{**_fields(row), "messages": user_message(changed)})
        assert rephrase(fake, [row], tmp_path).asked == 1
    with serving(lambda body: [""]) as fake:
        questions = rows(2)[1:]
        assert rephrase(fake, questions, tmp_path, check={"attempts": 1}).asked == 1
        assert rephrase(fake, questions, tmp_path, check={"attempts": 1}).asked == 0
        assert rephrase(fake, questions, tmp_path, check={"attempts": 3}).asked == 2


def _fields(row: PreparedRow) -> dict:
    return {name: getattr(row, name) for name in PreparedRow.__slots__}


def test_of_several_messages_the_last_is_said_anew(tmp_path):
    (row,) = rows(1)
    example = ({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
    row = PreparedRow(**{**_fields(row), "messages": (*example, *row.messages)})
    with serving(sound) as fake:
        done = rephrase(fake, [row], tmp_path)
    messages = done.rows[0].rephrased_messages
    assert messages[:2] == example
    assert messages[2] == {"role": "user", "content": sound(fake.bodies[0])[0]}
    assert "1+1" not in asked(fake.bodies[0])


def test_a_plain_prompt_is_continued_and_thinking_is_a_knob_of_chats(tmp_path):
    with serving(sound) as fake:
        rephrase(fake, rows(1), tmp_path, prompt={"template": "Q {question}", "chat": False})
        assert fake.bodies[-1]["prompt"].startswith("Q Tom has")
        rephrase(fake, rows(1), tmp_path, prompt={"template": "Q {question}", "thinking": False})
        assert fake.bodies[-1]["chat_template_kwargs"] == {"enable_thinking": False}


def solver(first: list[str], second: list[str]):
    """Rewrites questions, and solves the originals and the rephrasings differently."""

    def answer(body):
        if asked(body).startswith("Say anew"):
            return sound(body)
        boxes = first if "apples" in asked(body) else second
        assert body["n"] == len(boxes)
        assert body["messages"][0]["role"] == "system"
        return [rf"So it is \boxed{{{box}}}." for box in boxes]

    return answer


@pytest.mark.parametrize(
    ("first", "second", "knobs", "fault"),
    [
        (["15", "15", "3"], ["15", "4", "15.0"], {}, None),
        (["0.5", "0.5", "3"], ["1/2", r"\frac12", "4"], {}, None),
        (["15", "15", "3"], ["16", "16", "15"], {}, "answer changed"),
        (["15", "15", "3"], ["1", "2", "3"], {}, None),
        (["15", "15", "3"], ["1", "2", "3"], {"undecided": "refuse"}, "answer undecided"),
    ],
)
def test_the_majority_answers_to_both_versions_must_agree(tmp_path, first, second, knobs, fault):
    preserve = {"samples": 3, **knobs}
    with serving(solver(first, second)) as fake:
        done = rephrase(fake, rows(1), tmp_path, preserve=preserve, check={"attempts": 1})
    assert done.faults == ({} if fault is None else {fault: 1})
    assert len(done.rows) == (fault is None)


def test_a_faulty_rephrasing_is_not_worth_a_solution(tmp_path):
    with serving(lambda body: ["<rewritten question>"]) as fake:
        rephrase(fake, rows(1), tmp_path, preserve={"samples": 3}, check={"attempts": 1})
    assert len(fake.bodies) == 1


def test_a_server_with_another_model_is_refused_by_name(tmp_path):
    with (
        serving(sound, models=["Qwen/Other"]) as fake,
        pytest.raises(ValueError, match=r"'models/rewriter', got Qwen/Other\. Set model="),
    ):
        rephrase(fake, rows(1), tmp_path)
    assert fake.bodies == []


def test_a_key_goes_to_the_server_and_into_no_message(tmp_path, monkeypatch):
    monkeypatch.setenv(client.API_KEY, "very-secret")
    with serving(lambda body: 401) as fake, pytest.raises(RuntimeError, match="401") as caught:
        rephrase(fake, rows(1), tmp_path)
    assert fake.headers[-1]["Authorization"] == "Bearer very-secret"
    assert "very-secret" not in str(caught.value)
    # A wrong key is not tried again.
    assert len(fake.bodies) == 1


def test_a_server_that_speaks_another_language_or_none_is_the_worlds_fault(tmp_path):
    with (
        serving(sound, models=[]) as fake,
        pytest.raises(ValueError, match=r"need a server with the model"),
    ):
        rephrase(fake, rows(1), tmp_path)
    with serving(sound) as fake:
        fake.respond = lambda path, body: (200, {"hello": 1})
        with pytest.raises(RuntimeError, match=r"OpenAI's form, got .*hello.*--url"):
            rephrase(fake, rows(1), tmp_path)
        fake.respond = lambda path, body: (200, ["hello"])
        with pytest.raises(RuntimeError, match=r"need a JSON object"):
            rephrase(fake, rows(1), tmp_path)
    with pytest.raises(RuntimeError, match=r"ConnectError"):
        rephrase(fake, rows(1), tmp_path)
