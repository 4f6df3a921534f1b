"""How responses are sampled, and by which servers."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from megatron_corew.config.sections import Count, Positive, Section, Share


class RolloutConfig(Section):
    """How responses are sampled."""

    prompts_per_step: Count = 128
    """Questions per step. Paper: 128."""
    samples_per_prompt: Annotated[int, Field(ge=2)] = 8
    """Policy responses per prompt, the group of GRPO. Paper: 8."""
    teacher_samples: Count = 8
    """Teacher responses per prompt, for the vote. Paper: 8."""
    max_response_tokens: Count = 3072
    """Longest response, in tokens. Paper: 3,072."""
    temperature: Positive = 1.0
    """Sampling temperature of policy and teacher; the trainer's log-probs use it too."""
    top_p: Share = 1.0
    """Must be 1: a truncated distribution would bias the log-prob ratios."""
    stop: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    """At most 4 strings that end a response, besides the model's own end tokens."""

    @model_validator(mode="after")
    def sampling_is_not_truncated(self) -> Self:
        """The sampler's log-probs must be those of the full distribution."""
        if self.top_p != 1.0:
            raise ValueError(
                f"rollout.top_p: need 1.0, got {self.top_p}. The trainer's log-probs are those of "
                "the full distribution; lower rollout.temperature instead."
            )
        return self


class ServersConfig(Section):
    """The vLLM servers: started by the run, or addressed where they stand."""

    policy: tuple[str, ...] = ()
    """Addresses (http://host:port) of running servers; empty: the run starts one itself."""
    teacher: tuple[str, ...] = ()
    """Addresses of servers for the teacher; empty: policy and teacher take turns."""
    tensor_parallel: Count = 1
    """Tensor-parallel size of a server that the run starts."""
    host: str = "127.0.0.1"
    """Interface that a started server binds to."""
    bucket_mb: Count = 64
    """Largest piece of a weight push, in MB."""
    bucket_folder: str = "/dev/shm"
    """Folder through which weights reach the servers: shared memory of this host, or a folder that
    the servers' hosts share."""
    token_file: str | None = None
    """File (mode 600) with the token that the servers ask for; None: none. Needed by a server
    that listens on more than loopback."""
    start_timeout_s: Positive = 300.0
    """Seconds a server may take until it is healthy."""
    request_timeout_s: Positive = 600.0
    """Seconds a sampling or weight request may take."""
    max_sequences: Count = 256
    """Sequences a server works on at the same time."""
    threads: Count = 1
    """CPU threads of a started server."""
    kv_cache_gb: Positive = 1.0
    """Memory of the key/value cache of a started CPU server, in GB."""
    gpu_memory_share: Share = 0.6
    """Share of GPU memory a started server takes. Paper: 0.6 to 0.8."""
