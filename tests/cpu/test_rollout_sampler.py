"""Prompts go out and rollouts come back as token ids, each with noise of its own."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_corew.rollout.client import ServerClient
from megatron_corew.rollout.sampler import (
    PROMPTS_PER_REQUEST,
    Sampler,
    Sampling,
    ServerPool,
    prompt_seeds,
    read_choice,
)
from megatron_corew.types import Prompt, View
from tests.cpu.fake_vllm import END, FakeVllm, running, two_tokens_and_the_end

SEED_OF_Q0 = 4060668589553544578
SAMPLING = Sampling(temperature=0.7, max_tokens=3, stop=("\n",), stop_token_ids=(END, 11))


@pytest.fixture
def fakes() -> Iterator[list[FakeVllm]]:
    with running(FakeVllm()) as first, running(FakeVllm()) as second:
        yield [first, second]


def sampler_on(fakes: list[FakeVllm]) -> Sampler:
    clients = [ServerClient(fake.address, timeout_s=30) for fake in fakes]
    sampler = Sampler(
        ServerPool(clients),
        "policy",
        sampling=SAMPLING,
        bucket_folder=Path("/dev/shm"),
        bucket_bytes=64,
        dtype=torch.float32,
    )
    sampler.push(iter([("w", torch.ones(2))]), version=7)
    return sampler


def prompts(count: int, view: View = "original") -> list[Prompt]:
    return [
        Prompt(question_id=f"q{i}", view=view, text="never read", token_ids=(100 + i, 5))
        for i in range(count)
    ]


def test_tokens_are_taken_as_sampled_and_never_made_from_text(fakes):
    [group] = sampler_on(fakes[:1]).sample(prompts(1), samples=2, seed=0)
    for rollout in group.rollouts:
        assert rollout.token_ids == (1, 2, END)
        assert rollout.logprobs == (-0.5, -1.0, -1.5)
        assert rollout.text == "ab"
        assert rollout.finish_reason == "stop"
        assert rollout.weights_version == 7
    [body] = fakes[0].bodies
    assert body["prompt"] == [[100, 5]]
    assert body["add_special_tokens"] is False


def test_a_request_says_how_to_sample_and_where_to_end(fakes):
    sampler = sampler_on(fakes[:1])
    sampler.sample(prompts(1), samples=2, seed=0)
    sampler.sample(prompts(1), samples=1, seed=0, sampling=replace(SAMPLING, temperature=0.0))
    first, second = fakes[0].bodies
    assert (first["temperature"], first["max_tokens"], first["n"]) == (0.7, 3, 2)
    assert (first["stop"], first["stop_token_ids"]) == (["\n"], [END, 11])
    assert (first["logprobs"], first["return_token_ids"]) == (0, True)
    assert second["temperature"] == 0.0


def test_prompts_are_spread_over_the_servers_and_their_order_is_kept(fakes):
    def echo(prompt: list[int], seed: int, sample: int) -> dict[str, object]:
        return {**two_tokens_and_the_end(prompt, seed, sample), "token_ids": [*prompt, sample]}

    for fake in fakes:
        fake.choice = echo
    count = 2 * PROMPTS_PER_REQUEST + 5
    asked = prompts(count)
    groups = sampler_on(fakes).sample(asked, samples=2, seed=0)
    assert [group.prompt for group in groups] == asked
    for group in groups:
        tokens = [rollout.token_ids for rollout in group.rollouts]
        assert tokens == [(*group.prompt.token_ids, k) for k in range(2)]
    sizes = [sorted(len(body["prompt"]) for body in fake.bodies) for fake in fakes]
    assert sizes == [[3, PROMPTS_PER_REQUEST], [2, PROMPTS_PER_REQUEST]]
    for fake, share in zip(fakes, (PROMPTS_PER_REQUEST + 3, PROMPTS_PER_REQUEST + 2), strict=True):
        calls = {body["vllm_xargs"]["corew_batch"] for body in fake.bodies}
        assert len(calls) == 1
        assert {body["vllm_xargs"]["corew_size"] for body in fake.bodies} == {2 * share}
        assert sorted(body["vllm_xargs"]["corew_first"] for body in fake.bodies) == [0, 16]


def test_no_prompts_give_no_groups(fakes):
    assert sampler_on(fakes).sample([], samples=2, seed=0) == []


def test_every_call_role_view_question_and_sample_has_a_seed_of_its_own():
    seeds = [
        base + sample
        for call in range(3)
        for role in ("policy", "teacher")
        for view in ("original", "rephrased")
        for base in prompt_seeds(prompts(4, view), seed=call, role=role)
        for sample in range(8)
    ]
    assert len({seed % 2**32 for seed in seeds}) == len(seeds) == 3 * 2 * 2 * 4 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_belong_to_the_question_and_not_to_its_place_and_never_change():
    forward = prompt_seeds(prompts(4), seed=1, role="policy")
    assert prompt_seeds(prompts(4)[::-1], seed=1, role="policy") == forward[::-1]
    # The same in every process, on every machine, after every resume: pinned.
    assert prompt_seeds(prompts(1), seed=0, role="policy") == [SEED_OF_Q0]
    twice = prompt_seeds([*prompts(1), *prompts(1)], seed=1, role="policy")
    assert twice[0] == forward[0] != twice[1]


def test_the_servers_get_the_seeds_that_the_prompts_have(fakes):
    asked = prompts(20)
    sampler_on(fakes[:1]).sample(asked, samples=2, seed=3)
    got = {
        first_token: seed
        for body in fakes[0].bodies
        for (first_token, _), seed in zip(
            body["prompt"], body["vllm_xargs"]["corew_seeds"], strict=True
        )
    }
    seeds = prompt_seeds(asked, seed=3, role="policy")
    assert got == {prompt.token_ids[0]: s for prompt, s in zip(asked, seeds, strict=True)}


def choice(**changes: object) -> dict[str, object]:
    return {**two_tokens_and_the_end([], 0, 0), **changes}


def test_a_response_that_ends_with_the_padding_token_keeps_all_its_tokens():
    rollout = read_choice(choice(token_ids=[5, 6, 9]), SAMPLING, 0)
    assert len(rollout.token_ids) == len(rollout.logprobs) == 3


def test_a_response_of_full_length_without_an_end_is_marked_as_cut():
    rollout = read_choice(choice(token_ids=[5, 6, 7], finish_reason="length"), SAMPLING, 0)
    assert rollout.finish_reason == "length"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finish_reason": "abort"}, "finish reason 'abort'"),
        ({"finish_reason": "length", "token_ids": [1, 2]}, "after 2"),
        ({"token_ids": []}, "after 0"),
        ({"logprobs": {"token_logprobs": [-1.0, -1.0]}}, "one finite log-prob for each of 3"),
        ({"logprobs": {"token_logprobs": [-1.0, None, -1.0]}}, "finite"),
        ({"logprobs": {"token_logprobs": [-1.0, -9999.0, -1.0]}}, "finite"),
    ],
)
def test_a_response_that_is_not_what_was_asked_for_is_an_error(changes, words):
    with pytest.raises(RuntimeError, match=words):
        read_choice(choice(**changes), SAMPLING, 0)


def test_missing_responses_are_an_error(fakes):
    sampler = sampler_on(fakes[:1])
    complete = fakes[0].complete
    fakes[0].complete = lambda body: {"choices": complete(body)["choices"][1:]}  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="need 4 responses, got 3"):
        sampler.sample(prompts(2), samples=2, seed=0)


def test_when_one_server_fails_the_requests_of_the_others_are_aborted_and_not_waited_for(fakes):
    sampler = sampler_on(fakes)
    fakes[0].hold = True
    fakes[1].failing = {"/v1/completions"}
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="says no to /v1/completions"):
        sampler.sample(prompts(4), samples=1, seed=0)
    assert time.monotonic() - began < 10
    assert "/abort_requests" in fakes[0].calls


def test_several_greedy_samples_are_refused(fakes):
    with pytest.raises(ValueError, match=r"evaluate.samples_per_prompt: need 1.*got 4"):
        sampler_on(fakes).sample(
            prompts(1), samples=4, seed=0, sampling=replace(SAMPLING, temperature=0.0)
        )


def test_more_stop_strings_than_the_server_takes_are_refused():
    with pytest.raises(ValueError, match=r"rollout.stop: need at most 4 strings, got 5"):
        replace(SAMPLING, stop=tuple("abcde"))
