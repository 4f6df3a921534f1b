"""Measures the converters: GB/s both ways against copying, memory as models grow, transformers.

Every figure is taken in the same run, each conversion in a process of its own so that its peak
memory is its own. Every target replaces an older one, removed at the last moment: then all write
into memory that the machine has, none waits for a host to provide it, and nothing is pushed out of
memory. The first round only makes these targets. Ratios are medians over the repeats. JSON goes to
stdout.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config

from checkpoint_tools.hf_writer import HfWriter
from checkpoint_tools.side_files import write_json
from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.table import weight_table

_TO_MEGATRON = """
from checkpoint_tools import hf_to_megatron
from checkpoint_tools.megatron_writer import Layout
account = hf_to_megatron.convert(source, target, layout=Layout(), workers=workers)
"""
_TO_HF = """
from checkpoint_tools import megatron_to_hf
account = megatron_to_hf.convert(source, target, workers=workers)
"""
_TRANSFORMERS = """
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(source, dtype="auto").save_pretrained(target)
"""
_TRANSFORMERS_SYNCED = (
    _TRANSFORMERS
    + """
import os
for file in target.iterdir():
    os.fsync(os.open(file, os.O_RDONLY))
"""
)
_FRAME = """
import json, shutil, sys, time
from pathlib import Path
source, target, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
from checkpoint_tools.conversion import peak_memory
{imports}
before = peak_memory()
shutil.rmtree(target, ignore_errors=True)
start = time.monotonic()
{work}
print(json.dumps({{
    "seconds": time.monotonic() - start,
    "peak_bytes": peak_memory(),
    "import_bytes": before,
}}))
"""


def make_model(folder: Path, layers: int) -> int:
    """Write a random Qwen3 in bfloat16, tensor by tensor; return the bytes of its weights."""
    config = Qwen3Config(
        num_hidden_layers=layers,
        hidden_size=2048,
        intermediate_size=6144,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32768,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
    )
    bare = folder.with_name(folder.name + "-config")
    bare.mkdir(parents=True)
    write_json(bare / "config.json", json.loads(config.to_json_string(use_diff=False)))
    table = weight_table(read_architecture(json.loads((bare / "config.json").read_text())))
    generator = torch.Generator().manual_seed(1)
    with HfWriter(folder, source_folder=bare, dtype=torch.bfloat16) as writer:
        for entry in table:
            for name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True):
                writer.add(name, torch.randn(shape, generator=generator) * 0.02)
    return writer.num_bytes


def run(work: str, source: Path, target: Path, workers: int) -> dict[str, float]:
    """Do one piece of work in a fresh process."""
    lines = work.strip().splitlines()
    imports = "\n".join(line for line in lines if line.startswith(("from", "import")))
    rest = "\n".join(line for line in lines if not line.startswith(("from", "import")))
    program = _FRAME.format(imports=imports, work=rest)
    done = subprocess.run(
        [sys.executable, "-c", program, str(source), str(target), str(workers)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def copy(source: Path, target: Path, *, synced: bool) -> float:
    """Seconds that cp needs for the folder, with the disk's answer or without."""
    shutil.rmtree(target, ignore_errors=True)
    start = time.monotonic()
    subprocess.run(["cp", "-r", source, target], check=True)
    if synced:
        subprocess.run(["sync", *sorted(map(str, target.iterdir()))], check=True)
    return time.monotonic() - start


def measure(root: Path, layers: int, repeats: int, workers: int) -> dict[str, object]:
    """All figures of one size of model."""
    source, checkpoint, target = root / "hf", root / "megatron", root / "target"
    num_bytes = make_model(source, layers)
    rounds = []
    for _ in range(1 + repeats):
        figures = {
            "cp_s": copy(source, target, synced=False),
            "cp_sync_s": copy(source, target, synced=True),
            "to_megatron": run(_TO_MEGATRON, source, checkpoint, workers),
            "to_hf": run(_TO_HF, checkpoint, target, workers),
            "transformers": run(_TRANSFORMERS, source, target, workers),
            "transformers_and_sync": run(_TRANSFORMERS_SYNCED, source, target, workers),
        }
        rounds.append(figures)
    del rounds[0]
    cp_s = _median(one["cp_s"] for one in rounds)
    result: dict[str, object] = {
        "gigabytes": num_bytes / 1e9,
        "cp_gb_per_s": num_bytes / 1e9 / cp_s,
    }
    for way in ("to_megatron", "to_hf", "transformers", "transformers_and_sync"):
        result[way] = {
            "gb_per_s": _median(num_bytes / 1e9 / one[way]["seconds"] for one in rounds),
            "of_cp": _median(one["cp_s"] / one[way]["seconds"] for one in rounds),
            "of_cp_and_sync": _median(one["cp_sync_s"] / one[way]["seconds"] for one in rounds),
            "peak_gb": max(one[way]["peak_bytes"] for one in rounds) / 1e9,
            "imports_gb": max(one[way]["import_bytes"] for one in rounds) / 1e9,
        }
    shutil.rmtree(root)
    return result


def _median(values: object) -> float:
    return round(statistics.median(values), 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder")
    options = parser.parse_args()
    models = []
    for size in options.gigabytes:
        # 32768 x 2048 embedding, and 50.3 million parameters per layer, two bytes each.
        layers = max(1, round((size * 1e9 / 2 - 67.1e6) / 50.3e6))
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            models.append(measure(Path(folder) / "run", layers, options.repeats, options.workers))
    print(json.dumps({"workers": options.workers, "models": models}, indent=1))


if __name__ == "__main__":
    main()
