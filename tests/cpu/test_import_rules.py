"""The architecture as a test: who may import whom, imports inside functions included."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("megatron_corew", "checkpoint_tools", "launchers")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

EVERYTHING = None
# Part -> (our own modules it may import besides itself, packages of others it may import).
# A longer name wins over its parent. Modules of megatron_corew are written without the package.
RULES: dict[str, tuple[set[str] | None, set[str]]] = {
    # The nouns and the knobs: light enough for a login node.
    "types": (set(), {"torch"}),
    "methods": ({"types"}, {"pydantic"}),
    "config": ({"methods", "types"}, {"pydantic"}),
    "config_file": (
        {"config", "methods", "types"},
        {"omegaconf", "pydantic", "pydantic_core", "yaml"},
    ),
    "runs": ({"config", "config_file"}, set()),
    "seeds": (set(), set()),
    "ranks": (set(), {"torch"}),
    "torchrun": (set(), {"torch"}),
    # Maths and answers know nothing of a run.
    "algo": ({"types"}, {"torch"}),
    "answers": ({"types"}, {"math_verify"}),
    "labelling": ({"algo", "methods", "types"}, {"torch"}),
    "parts": ({"types"}, {"torch"}),
    "gathering": (
        {"algo", "config", "data.batching", "labelling", "parts", "seeds", "types"},
        {"torch"},
    ),
    "loop": (
        {"algo", "config", "data.batching", "gathering", "parts", "types"},
        {"torch"},
    ),
    # The two engines do not know each other: they meet in the stream of weights.
    "mcore": (
        {"algo", "checkpoint_tools", "config", "layout_check", "ranks", "runs", "types"},
        {"megatron", "safetensors", "torch", "transformer_engine"},
    ),
    "rollout": ({"config", "ranks", "types"}, {"httpx", "safetensors", "torch", "vllm"}),
    "plan": (
        {"checkpoint_tools.weight_map", "config", "config_file", "layout_check"},
        {"pydantic", "rich", "typer"},
    ),
    "layout_check": ({"checkpoint_tools.weight_map", "config"}, set()),
    "checkpoint_tools": (
        {"checkpoint_tools"},
        {"huggingface_hub", "rich", "safetensors", "torch", "transformers", "typer"},
    ),
    # The optional backend imports megatron.bridge where that is installed.
    "checkpoint_tools.megatron_bridge": ({"checkpoint_tools"}, {"megatron"}),
    "checkpoint_tools.weight_map": ({"checkpoint_tools.weight_map"}, {"torch"}),
    # Questions in, records out.
    "data": (
        {"config", "lab.task", "types"},
        {"datasets", "jinja2", "torch", "transformers"},
    ),
    # Answers stand inside solutions, and copies of a question may contradict each other.
    "data.prepare": (
        {"answers.boxes", "answers.keys", "config", "data.rendering", "data.sources", "data.views"},
        {"datasets"},
    ),
    "data.rephrase": ({"config", "data.prepare", "types"}, {"httpx", "pydantic", "rich"}),
    "lab": ({"types"}, {"rich", "safetensors", "tokenizers", "torch", "transformers", "typer"}),
    # A comparison is made of whole runs: it knows their configuration and their records.
    "lab.compare": (
        {
            "config",
            "config_file",
            "methods",
            "observe",
            "rollout.child_of",
            "runs",
            "types",
        },
        {"jinja2", "matplotlib", "rich"},
    ),
    "evaluate": ({"ranks", "types"}, set()),
    "observe": ({"config", "types"}, {"jinja2", "rich", "torch", "wandb", "yaml"}),
    "guard": ({"config", "observe", "runs"}, set()),
    "observer": (
        {
            "answers",
            "config",
            "evaluate",
            "guard",
            "methods",
            "observe",
            "ranks",
            "runs",
            "seeds",
            "types",
        },
        {"torch"},
    ),
    # Resources only, in an environment without torch.
    "launchers": (
        {"config", "config_file"},
        {"jinja2", "nemo_run", "pydantic", "rich", "typer", "yaml"},
    ),
    # Wiring: these may know all the others.
    "launch": ({"config", "rollout.child_of", "runs"}, set()),
    "doctor": (
        {"config", "preflight"},
        {"packaging", "psutil", "rich", "torch"},
    ),
    "preflight": (EVERYTHING, {"transformers"}),
    "run": (EVERYTHING, {"rich", "torch"}),
    "export": (EVERYTHING, set()),
    "judges": ({"answers", "config"}, set()),
    "terminal": (set(), {"rich"}),
    "data_commands": (EVERYTHING, {"typer"}),
    "rephrase_command": (EVERYTHING, {"torch", "typer"}),
    "lab_command": (EVERYTHING, {"typer"}),
    "cli": (EVERYTHING, {"torch", "typer"}),
}

# Modules that a process of their own loads, by name: importing one would pull its engine in here.
LOADED_ELSEWHERE = {
    "vllm": {"rollout.batch_gate", "rollout.shm_engine"},
    "math_verify": {"answers.worker"},
}


def module_of(path: Path) -> str:
    """The dotted name by which the rules know a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(part for part in parts if part != "__init__")
    return short(dotted)


def short(module: str) -> str:
    return module.removeprefix("megatron_corew.")


def is_within(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def part_of(module: str) -> str | None:
    """The rule that governs a module: the longest name that it lies within."""
    return max((part for part in RULES if is_within(module, part)), key=len, default=None)


def imports(path: Path) -> tuple[set[str], set[str]]:
    """What a file imports anywhere: our own modules, and the packages of others."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno}: relative import"
            # "from package import module" names a module too; "from module import name" does
            # not, and is governed by the module.
            names |= {
                f"{node.module}.{alias.name}"
                if is_module(f"{node.module}.{alias.name}")
                else str(node.module)
                for alias in node.names
            }
    own = {short(name) for name in names if name.partition(".")[0] in PACKAGES}
    roots = {name.partition(".")[0] for name in names} - {*PACKAGES, *sys.stdlib_module_names}
    return own, roots


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_a_module_imports_only_what_its_part_may(path):
    module = module_of(path)
    if module in PACKAGES:
        assert path.read_text().strip() == "" or imports(path) == (set(), set())
        return
    part = part_of(module)
    assert part is not None, f"{module} has no row in the table of rules: say what it may import"
    allowed, packages = RULES[part]
    own, roots = imports(path)
    if allowed is not EVERYTHING:
        ours = {name for name in own if not is_within(name, part) and name != "megatron_corew"}
        wrong = {name for name in ours if not any(is_within(name, one) for one in allowed)}
        assert not wrong, f"{module} imports {wrong}; {part} may import {allowed or 'nothing'}"
    assert roots <= packages, f"{module} imports {roots - packages}; {part} may import {packages}"


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_an_engine_is_imported_only_where_its_own_process_loads_it(path):
    own, roots = imports(path)
    for package, homes in LOADED_ELSEWHERE.items():
        if package in roots:
            assert module_of(path) in homes, f"{path} imports {package}; only {homes} may"
        assert not own & (homes - {module_of(path)}), f"{path} imports a module of {package}"


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_no_import_hides_behind_a_string(path):
    if part_of(module_of(path)) == "mcore":
        return  # It redirects calls inside Megatron's modules, which it names by string.
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {ast.unparse(call.func) for call in calls}
    assert not names & {"__import__", "import_module", "importlib.import_module", "exec", "eval"}


def test_every_rule_has_a_part():
    parts = {part_of(module_of(path)) for path in FILES}
    assert RULES.keys() - parts == set()


ENGINES = {"torch", "megatron", "vllm", "transformers", "datasets", "math_verify"}
LIGHT = (
    "types",
    "methods",
    "config",
    "config_file",
    "runs",
    "observe.metrics",
    "observe.progress",
    "observe.report",
    "answers.judge",
)


def test_light_modules_load_no_engine():
    program = f"""
import importlib, sys
for name in {LIGHT}:
    importlib.import_module("megatron_corew." + name)
    loaded = sys.modules.keys() & {ENGINES}
    if loaded:
        sys.exit(f"{{name}} loads {{loaded}}")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
