"""Seeds of the sampling calls: one number per (run, step, purpose), the same after a resume."""

import hashlib


def call_seed(run_seed: int, step: int, purpose: str) -> int:
    """A number in [0, 2^48) that differs for every step and purpose of a run.

    Args:
        run_seed: ``run.seed``.
        step: training step.
        purpose: who samples and why, e.g. ``policy``, ``teacher``, ``evaluate``.
    """
    digest = hashlib.blake2b(f"{run_seed}/{step}/{purpose}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")
