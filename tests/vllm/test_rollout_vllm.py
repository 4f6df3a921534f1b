"""A real vLLM server on CPU against Hugging Face, and against itself."""

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_corew.rollout.sampler import (
    PROMPTS_PER_REQUEST,
    Sampler,
    ServerPool,
    request_bodies,
)
from megatron_corew.rollout.server import LOG_TAIL_LINES, STEP_TOKENS, VllmServer
from megatron_corew.types import Prompt, RolloutGroup
from tests.vllm.conftest import (
    END,
    SAMPLING,
    SERVERS,
    VOCAB_SIZE,
    Stand,
    build_model,
    hf_weights,
    perturbed,
    start,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(180)]


def some_prompts(count: int, *, shared: int = 0) -> list[Prompt]:
    """Random prompts of 8 to 20 tokens after ``shared`` equal ones."""
    chance = random.Random(0)
    start_tokens = [chance.randrange(2, VOCAB_SIZE) for _ in range(shared)]
    return [
        Prompt(
            question_id=str(i),
            view="original",
            text="",
            token_ids=(
                *start_tokens,
                *(chance.randrange(2, VOCAB_SIZE) for _ in range(chance.randrange(8, 21))),
            ),
        )
        for i in range(count)
    ]


def mean_gap(
    model: torch.nn.Module, groups: Sequence[RolloutGroup], temperature: float = 1.0
) -> float:
    """Mean absolute difference of the server's log-probs to the model's own."""
    gaps = []
    for group in groups:
        for rollout in group.rollouts:
            ids = torch.tensor([[*group.prompt.token_ids, *rollout.token_ids]])
            with torch.no_grad():
                logits = model(ids).logits[0, len(group.prompt.token_ids) - 1 : -1].float()
            logprobs = torch.log_softmax(logits / temperature, -1)
            own = logprobs.gather(-1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
            gaps.append((own - torch.tensor(rollout.logprobs)).abs())
    return float(torch.cat(gaps).mean())


def test_log_probs_after_every_push_are_those_of_the_pushed_weights(stand: Stand):
    prompts = some_prompts(6)
    for version in (1, 2):
        model = perturbed(stand.folder, seed=10 + version)
        stand.sampler.push(hf_weights(model), version)
        for temperature in (1.0, 0.7):
            sampling = replace(SAMPLING, temperature=temperature)
            groups = stand.sampler.sample(prompts, samples=4, seed=version, sampling=sampling)
            assert mean_gap(model, groups, temperature) <= 1e-5
            assert {r.weights_version for g in groups for r in g.rollouts} == {version}
    other = perturbed(stand.folder, seed=11)
    assert mean_gap(other, groups, temperature) > 1e-2  # the comparison can fail


def test_a_tied_head_follows_when_only_the_embedding_changes(stand: Stand):
    model = perturbed(stand.folder, seed=3)
    stand.sampler.push(hf_weights(model), version=1)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.2)
    stand.sampler.push(hf_weights(model), version=2)
    groups = stand.sampler.sample(some_prompts(4), samples=2, seed=0)
    assert mean_gap(model, groups) <= 1e-5


def test_a_push_forgets_what_was_computed_with_the_old_weights(stand: Stand):
    # Two blocks of 32 tokens are equal, so that a stock server would reuse them.
    [prompt] = some_prompts(1, shared=70)
    body = {
        "prompt": list(prompt.token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 0,
        "return_token_ids": True,
    }

    def gap(model: torch.nn.Module) -> float:
        # Without the keys of the batch gate nothing but the push itself clears the cache.
        [choice] = stand.client.complete(body)["choices"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt.token_ids])).logits[0, -1]
        own = torch.log_softmax(logits, -1)[choice["token_ids"][0]]
        return abs(float(own) - choice["logprobs"]["token_logprobs"][0])

    for version in (1, 2):
        model = perturbed(stand.folder, seed=20 + version)
        stand.sampler.push(hf_weights(model), version)
        assert gap(model) <= 1e-5
        assert gap(model) <= 1e-5


def test_responses_end_by_end_token_by_stop_string_or_by_length(stand: Stand):
    stand.sampler.push(hf_weights(stand.model), version=1)
    prompts = some_prompts(8)
    plain = stand.sampler.sample(prompts, samples=4, seed=0)
    ends = tuple(range(40, 60))
    sampling = replace(SAMPLING, stop_token_ids=ends)
    ended = stand.sampler.sample(prompts, samples=4, seed=0, sampling=sampling)
    letters = ("a", "K", "3", "z")
    stopped = stand.sampler.sample(
        prompts, samples=4, seed=0, sampling=replace(SAMPLING, stop=letters)
    )
    reasons = set()
    for free, by_token, by_string in zip(plain, ended, stopped, strict=True):
        for a, b, c in zip(free.rollouts, by_token.rollouts, by_string.rollouts, strict=True):
            reasons.add((b.finish_reason, c.finish_reason))
            # The same noise: a response with an end is the beginning of the one without.
            cut = next((i + 1 for i, t in enumerate(a.token_ids) if t in ends), None)
            assert b.token_ids == a.token_ids[:cut]
            assert b.finish_reason == ("stop" if cut else a.finish_reason)
            places = [a.text.find(letter) for letter in letters if letter in a.text]
            assert c.text == (a.text[: min(places)] if places else a.text)
            assert c.finish_reason == ("stop" if places else a.finish_reason)
            if places:  # tokens keep the stop string: characters are tokens here
                assert chr(c.token_ids[-1] + 30) in letters
            for rollout in (a, b, c):
                assert len(rollout.logprobs) == len(rollout.token_ids)
                if rollout.finish_reason == "length":
                    assert len(rollout.token_ids) == SAMPLING.max_tokens
    assert {by_token for by_token, _ in reasons} == {"stop", "length"}
    assert {by_string for _, by_string in reasons} == {"stop", "length"}


def test_the_end_token_of_the_model_ends_a_response_and_stays_in_it(stand: Stand):
    model = perturbed(stand.folder, seed=1)
    with torch.no_grad():
        # The end token becomes as likely as all others together.
        head = model.lm_head.weight
        head[END] = head[2:40].sum(0)
    stand.sampler.push(hf_weights(model), version=1)
    groups = stand.sampler.sample(some_prompts(8), samples=8, seed=0)
    ended = [r for g in groups for r in g.rollouts if r.finish_reason == "stop"]
    assert ended
    assert all(r.token_ids[-1] == END and END not in r.token_ids[:-1] for r in ended)
    assert not any("<end>" in r.text for r in ended)


def test_greedy_takes_the_likeliest_token_and_gives_log_probs_at_temperature_one(stand: Stand):
    stand.sampler.push(hf_weights(stand.model), version=1)
    greedy = replace(SAMPLING, temperature=0.0)
    groups = stand.sampler.sample(some_prompts(4), samples=1, seed=0, sampling=greedy)
    assert mean_gap(stand.model, groups) <= 1e-5
    [rollout] = groups[0].rollouts
    with torch.no_grad():
        logits = stand.model(torch.tensor([groups[0].prompt.token_ids])).logits[0, -1]
    assert rollout.token_ids[0] == int(logits.argmax())


@pytest.mark.parametrize("broken", ["layer missing", "half a layer", "wrong name", "wrong shape"])
def test_after_a_failed_push_nothing_is_sampled_until_a_good_push_heals_it(stand: Stand, broken):
    weights = dict(hf_weights(stand.model))
    key = "model.layers.1.self_attn.k_proj.weight"
    if broken == "layer missing":
        weights = {name: w for name, w in weights.items() if "layers.1.mlp" not in name}
    elif broken == "half a layer":
        del weights[key]
    elif broken == "wrong name":
        weights["model.layers.1.nonsense.weight"] = weights.pop(key)
    else:
        weights[key] = weights[key][:, :-1]
    words = {"layer missing": "layers.1.mlp", "half a layer": "layers.1.self_attn.qkv_proj"}
    with pytest.raises(RuntimeError, match=words.get(broken, "status 500")):
        stand.sampler.push(iter(weights.items()), version=1)
    with pytest.raises(RuntimeError, match="the servers hold none"):
        stand.sampler.sample(some_prompts(1), samples=1, seed=0)
    stand.sampler.push(hf_weights(stand.model), version=2)
    assert mean_gap(stand.model, stand.sampler.sample(some_prompts(4), samples=2, seed=0)) <= 1e-5


def test_a_push_that_was_begun_and_given_up_does_not_block_the_next(stand: Stand):
    stand.client.begin_update()
    stand.sampler.push(hf_weights(stand.model), version=1)
    assert mean_gap(stand.model, stand.sampler.sample(some_prompts(4), samples=2, seed=0)) <= 1e-5


class LateClient:
    """The server's client, whose requests arrive late and in any order."""

    def __init__(self, stand: Stand, seed: int) -> None:
        self._client = stand.client
        self._chance = random.Random(seed)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def complete(self, body: Mapping[str, object]) -> dict[str, Any]:
        with self._lock:
            delay_s = self._chance.random() * 0.1
        time.sleep(delay_s)
        return self._client.complete(body)


@pytest.mark.parametrize("stop", [(), ("ab", "x", "Q")])
def test_equal_calls_give_equal_bits_whatever_arrives_when_and_came_before(stand: Stand, stop):
    prompts = some_prompts(64, shared=33)
    assert sum(8 * len(prompt.token_ids) for prompt in prompts) > 2 * STEP_TOKENS
    sampling = replace(SAMPLING, stop=stop)
    results = []
    for attempt in range(3):
        pool = ServerPool([LateClient(stand, seed=attempt)])
        sampler = Sampler(
            pool,
            "policy",
            sampling=sampling,
            bucket_folder=Path("/dev/shm"),
            bucket_bytes=60_000,
            dtype=torch.float32,
        )
        sampler.push(hf_weights(stand.model), version=1)
        if attempt == 1:
            sampler.sample(prompts[::-1][:20], samples=3, seed=9)
        results.append(sampler.sample(prompts, samples=8, seed=4))
    results.append(sampler.sample(prompts, samples=8, seed=4))
    assert results[0] == results[1] == results[2] == results[3]
    # Every sample has noise of its own; short responses can be equal by chance.
    tokens = [r.token_ids[:6] for g in results[0] for r in g.rollouts if len(r.token_ids) >= 6]
    assert len(set(tokens)) == len(tokens) > 100
    other = sampler.sample(prompts[:2], samples=8, seed=5)
    assert other != results[0][:2]


def test_a_call_starts_when_all_of_its_requests_are_in(stand: Stand):
    prompts = some_prompts(PROMPTS_PER_REQUEST + 1)
    first, second = request_bodies(prompts, list(range(len(prompts))), 2, SAMPLING)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(stand.client.complete, first)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=1.0)
        stand.client.complete(second)
        assert len(waiting.result()["choices"]) == 2 * PROMPTS_PER_REQUEST
        given_up = threads.submit(stand.client.complete, first | {"request_id": "again"})
        with pytest.raises(TimeoutError):
            given_up.result(timeout=1.0)
        stand.client.abort_all()
        assert given_up.exception() or given_up.result()["choices"][0]["finish_reason"] == "abort"


def test_a_request_that_the_server_refuses_is_an_error_with_its_words(stand: Stand):
    stand.sampler.push(hf_weights(stand.model), version=1)
    [long] = some_prompts(1, shared=300)
    prompts = [*some_prompts(40), long]
    with pytest.raises(RuntimeError, match=r"status 400.*256"):
        stand.sampler.sample(prompts, samples=2, seed=0)
    # Nothing of that call is left behind the gate.
    stand.sampler.sample(prompts[:-1], samples=2, seed=0)


def test_a_server_with_another_type_is_refused(stand: Stand):
    with pytest.raises(RuntimeError, match=r"bfloat16.*float32"):
        stand.client.check(dtype="bfloat16", min_model_len=256)


def test_stop_leaves_no_process_and_a_client_then_tells_of_the_end(tmp_path: Path):
    server = start(build_model(tmp_path / "model", tied=True), tmp_path / "server.log")
    try:
        server.wait_until_healthy()
        client = server.client()
        assert client.is_healthy()
        group = server._process.pid  # type: ignore[union-attr]
        assert len(_processes_of(group)) >= 2
    finally:
        server.stop()
    assert _processes_of(group) == []
    with pytest.raises(RuntimeError, match=r"(?s)need an answer.*exit code.*its log"):
        client.weight_version()


def test_a_server_that_dies_at_its_start_tells_why(tmp_path: Path):
    server = VllmServer(
        str(tmp_path / "nothing"),
        SERVERS,
        dtype="float32",
        max_model_len=64,
        seed=0,
        log_path=tmp_path / "logs" / "server.log",
    )
    server.start()
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*nothing") as failure:
        server.wait_until_healthy()
    assert str(failure.value).count("\n") <= LOG_TAIL_LINES
    assert server.exit_code() == 1


def _processes_of(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if os.getpgid(int(folder.name)) == group and state != "Z":
                found.append(int(folder.name))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found
