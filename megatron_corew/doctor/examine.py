"""All checks, in the order in which a person would ask."""

from collections.abc import Sequence

from megatron_corew.config import Config
from megatron_corew.doctor import machine, packages, run_fit
from megatron_corew.doctor.facts import Facts
from megatron_corew.doctor.finding import Finding

CHECKS = (
    packages.check_python,
    packages.check_needed,
    packages.check_vllm,
    packages.check_one_torch,
    packages.check_imports,
    packages.check_cpu_companions,
    packages.check_transformer_engine,
    packages.check_apex,
    packages.check_flash_attention,
    machine.check_gpus,
    machine.check_nccl,
    machine.check_fp8,
    machine.check_shared_memory,
    machine.check_disk,
    machine.check_open_files,
    machine.check_locked_memory,
    machine.check_clock,
    machine.check_memory,
    machine.check_ports,
)
RUN_CHECKS = (
    run_fit.check_extras,
    run_fit.check_servers,
    run_fit.check_model,
    run_fit.check_data,
)


def examine(facts: Facts, config: Config | None) -> list[Finding]:
    """Judge the machine and the environment, and a run if there is one.

    Args:
        facts: what was seen.
        config: the run, or None.
    """
    findings = [check(facts) for check in CHECKS]
    if config is not None:
        findings.append(run_fit.check_processes(facts, config))
        bad = {one.check for one in findings if one.status == "bad"}
        # Without the packages, what the run lacks cannot be told.
        if bad.isdisjoint(("packages", "imports")):
            findings += [check(config) for check in RUN_CHECKS]
    return findings


def can_run(findings: Sequence[Finding]) -> bool:
    """Whether nothing is bad."""
    return all(finding.status != "bad" for finding in findings)
