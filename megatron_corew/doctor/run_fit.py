"""Judges whether a given run can start here, with the same checks that start it."""

from collections.abc import Callable

from megatron_corew import preflight
from megatron_corew.config import Config
from megatron_corew.doctor.facts import Facts
from megatron_corew.doctor.finding import Finding, bad, ok


def check_processes(facts: Facts, config: Config) -> Finding:
    """One GPU per trainer process, and one group of them per own server."""
    need = config.parallel.processes
    if facts.gpus and need > len(facts.gpus):
        return bad(
            "layout",
            f"{need} trainer processes for {len(facts.gpus)} GPUs on this machine",
            "lower parallel.tensor, .pipeline or .data, or start on more nodes: docs/launch.md",
        )
    return ok("layout", f"{need} trainer processes")


def check_model(config: Config) -> Finding:
    """The model's folder is whole, and its layout and lengths fit."""
    return _refusal_of("model", config.model.path, lambda: preflight.check_model(config))


def check_data(config: Config) -> Finding:
    """The training and held-out questions can be read."""

    def read() -> None:
        preflight.training_questions(config)
        preflight.held_out_questions(config)

    return _refusal_of("data", config.data.train, read)


def check_servers(config: Config) -> Finding:
    """Addressed servers answer."""
    addresses = [*config.servers.policy, *config.servers.teacher]
    seen = ", ".join(addresses) or "started by the run"
    return _refusal_of("servers", seen, lambda: preflight.check_servers(config))


def check_extras(config: Config) -> Finding:
    """Packages that only some runs need are there."""
    return _refusal_of("extras", "none missing", lambda: preflight.check_wandb(config))


def _refusal_of(name: str, seen: str, action: Callable[[], object]) -> Finding:
    """What a check of ``preflight`` says: its refusals name the knob that mends them."""
    try:
        action()
    except (ValueError, RuntimeError, OSError) as error:
        what, _, mend = str(error).rpartition(". ")
        return bad(name, what or str(error), mend)
    return ok(name, seen)
