"""Weights reach the servers whole, in order, and never half."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from megatron_corew.rollout.client import REQUIRED_SETTINGS, ServerClient
from megatron_corew.rollout.sampler import Sampler, Sampling, ServerPool
from megatron_corew.types import Prompt
from tests.cpu.fake_vllm import FakeVllm, running

BEGIN = ["/pause", "/collective_rpc", "/start_weight_update"]
FINISH = ["/finish_weight_update", "/reset_prefix_cache", "/resume"]
PROMPT = Prompt(question_id="q", view="original", text="", token_ids=(4, 5))


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with running(FakeVllm()) as server:
        yield server


def sampler_on(
    *fakes: FakeVllm, role: str = "policy", bucket_bytes: int = 64, pool: ServerPool | None = None
) -> Sampler:
    clients = [ServerClient(fake.address, timeout_s=30) for fake in fakes]
    return Sampler(
        pool or ServerPool(clients),
        role,
        sampling=Sampling(temperature=1.0, max_tokens=8),
        bucket_folder=Path("/dev/shm"),
        bucket_bytes=bucket_bytes,
        dtype=torch.float32,
    )


def weights(*sizes: int) -> Iterator[tuple[str, torch.Tensor]]:
    for number, size in enumerate(sizes):
        yield f"w{number}", torch.full((size,), float(number))


def test_a_push_is_begin_then_all_weights_then_finish_then_reset_and_only_then_sampling(fake):
    sampler = sampler_on(fake)
    sampler.push(weights(8, 8, 8), version=3)
    sampler.sample([PROMPT], samples=1, seed=0)
    # 8 float32 = 32 bytes: two tensors fill a bucket of 64.
    expected = [*BEGIN, "/update_weights", "/update_weights", *FINISH]
    assert fake.calls == [*expected, "/weight_info", "/v1/completions"]
    assert fake.version == "policy-3"
    assert sampler.version == 3


def test_buckets_hold_at_most_the_given_bytes_and_a_larger_tensor_goes_alone(fake):
    sampler_on(fake).push(weights(4, 4, 40, 4, 12), version=0)
    # bytes: 16+16 | 160 | 16+48
    assert [size for size, _, _ in fake.buckets] == [32, 160, 64]
    assert {name: tensor.tolist() for name, tensor in fake.loaded.items()} == {
        name: tensor.tolist() for name, tensor in weights(4, 4, 40, 4, 12)
    }


def test_bucket_files_are_private_and_gone_after_the_push(fake):
    sampler_on(fake).push(weights(8, 8, 8), version=0)
    assert [modes for _, *modes in fake.buckets] == [["0o600", "0o700"]] * 2
    assert not any(path.exists() or path.parent.exists() for path in fake.paths)


def test_weights_arrive_in_the_type_of_the_server_and_the_stream_may_reuse_its_memory(fake):
    memory = torch.zeros(4, dtype=torch.bfloat16)

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for value in (1.0, 2.0):
            yield f"w{value:g}", memory.fill_(value)

    sampler_on(fake).push(stream(), version=0)
    assert fake.loaded["w1"].tolist() == [1.0] * 4
    assert fake.loaded["w2"].tolist() == [2.0] * 4
    assert fake.loaded["w1"].dtype == torch.float32


def test_a_transposed_tensor_arrives_as_it_looks(fake):
    matrix = torch.arange(6.0).reshape(2, 3)
    sampler_on(fake).push(iter([("w", matrix.T)]), version=0)
    assert fake.loaded["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("place", ["/start_weight_update", "/update_weights", *FINISH])
def test_after_a_failed_push_sampling_is_refused_until_a_push_succeeds(fake, place):
    sampler = sampler_on(fake)
    sampler.push(weights(8), version=0)
    fake.failing = {place}
    with pytest.raises(RuntimeError, match=f"500.*the server says no to {place}"):
        sampler.push(weights(8, 8, 8, 8), version=1)
    assert sampler.version is None
    asked = len(fake.bodies)
    with pytest.raises(RuntimeError, match="the servers hold none"):
        sampler.sample([PROMPT], samples=1, seed=0)
    assert len(fake.bodies) == asked
    assert not any(path.parent.exists() for path in fake.paths)
    fake.failing = set()
    sampler.push(weights(8), version=2)
    [group] = sampler.sample([PROMPT], samples=1, seed=0)
    assert group.rollouts[0].weights_version == 2


def test_the_stream_is_walked_to_its_end_although_the_server_fails_at_once(fake):
    fake.failing = {"/start_weight_update"}
    walked = []

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights(8, 8, 8):
            walked.append(name)
            yield name, tensor

    with pytest.raises(RuntimeError, match="says no"):
        sampler_on(fake).push(stream(), version=0)
    assert walked == ["w0", "w1", "w2"]
    assert "/update_weights" not in fake.calls


def test_a_stream_that_fails_itself_leaves_no_weights_in_force_and_no_file(fake):
    sampler = sampler_on(fake)

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        yield from weights(8, 8, 8)
        raise KeyError("no such tensor")

    with pytest.raises(KeyError):
        sampler.push(stream(), version=0)
    assert sampler.version is None
    assert "/finish_weight_update" not in fake.calls
    assert not any(path.parent.exists() for path in fake.paths)


def test_a_server_that_cannot_be_reached_is_named_with_its_last_words():
    with running(FakeVllm()) as gone:
        address = gone.address
    client = ServerClient(address, timeout_s=5, post_mortem=lambda: "it died of hunger")
    assert not client.is_healthy()
    with pytest.raises(RuntimeError, match=rf"(?s){address}.*ConnectError.*it died of hunger"):
        client.begin_update()


def test_two_roles_take_turns_on_one_pool(fake):
    policy = sampler_on(fake)
    teacher = sampler_on(role="teacher", pool=policy._pool)
    policy.push(weights(8), version=5)
    teacher.push(weights(8), version=4)
    assert (policy.version, teacher.version) == (None, 4)
    with pytest.raises(RuntimeError, match="need a finished push of the policy's weights"):
        policy.sample([PROMPT], samples=1, seed=0)
    [group] = teacher.sample([PROMPT], samples=1, seed=0)
    assert group.rollouts[0].weights_version == 4
    assert fake.calls.count("/reset_prefix_cache") == 2


def test_every_server_of_a_pool_gets_all_weights(fake):
    with running(FakeVllm()) as second:
        sampler_on(fake, second).push(weights(8, 8, 8), version=0)
        assert set(fake.loaded) == set(second.loaded) == {"w0", "w1", "w2"}
        assert second.version == "policy-0"


def test_a_server_that_was_restarted_behind_its_address_is_not_sampled_from(fake):
    sampler = sampler_on(fake)
    sampler.push(weights(8), version=1)
    fake.version = "default"
    with pytest.raises(RuntimeError, match="need weights policy-1, got default"):
        sampler.sample([PROMPT], samples=1, seed=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"logprobs": "raw_logprobs"}, "processed_logprobs"),
        ({"scheduler": "None"}, "BatchGate"),
        ({"generation_config": "auto"}, "vllm"),
        ({"dtype": "bfloat16"}, "float32"),
        ({"max_model_len": 99}, "at least 100"),
    ],
)
def test_a_server_with_other_settings_is_refused(fake, wrong, words):
    right = {**REQUIRED_SETTINGS, "dtype": "float32", "max_model_len": 100}
    client = ServerClient(fake.address, timeout_s=30)
    fake.settings = right
    client.check(dtype="float32", min_model_len=100)
    fake.settings = {**right, **wrong}
    with pytest.raises(RuntimeError, match=words):
        client.check(dtype="float32", min_model_len=100)
