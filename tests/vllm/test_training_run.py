"""`corew train` as a user runs it: a short real run, killed and resumed, exported."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_corew.observe.metrics import read_events, read_metrics

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
COREW = [sys.executable, "-c", "from megatron_corew.cli import main; main()"]
SMALL = [
    "run.steps=9",
    "rollout.prompts_per_step=4",
    "rollout.samples_per_prompt=4",
    "rollout.teacher_samples=4",
    "evaluate.questions=8",
    "evaluate.every=2",
    "checkpoint.every=2",
    "optimizer.lr=5e-3",
]
# What depends on the clock or on the attempt.
VOLATILE = ("time", "tokens_per_s", "attempt")


def corew(*arguments: str) -> list[str]:
    return [*COREW, *arguments]


def train_command(root: Path, name: str) -> list[str]:
    demo = str(ROOT / "configs" / "runs" / "demo.yaml")
    return corew("train", demo, f"run.root={root}", f"run.name={name}", *SMALL)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run_to_end(command: list[str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def kill_once(command: list[str], reached: Callable[[], bool]) -> None:
    """Start a run and kill -9 all of it as soon as it has got so far."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 400
    try:
        while time.monotonic() < deadline and process.poll() is None and not reached():
            time.sleep(0.05)
        assert process.poll() is None, "the run ended before it could be killed"
    finally:
        kill_tree(process.pid)
        process.wait()


def has_recorded(folder: Path, step: int) -> bool:
    return any(record["step"] >= step for record in read_metrics(folder))


def kill_tree(root: int) -> None:
    """kill -9 a process and everything that descends from it, whatever its process group."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    doomed, queue = [], [root]
    while queue:
        pid = queue.pop()
        doomed.append(pid)
        queue += children.get(pid, [])
    for pid in doomed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def comparable(folder: Path) -> dict[int, dict[str, float]]:
    return {
        int(record["step"]): {
            name: value for name, value in record.items() if not name.startswith(VOLATILE)
        }
        for record in read_metrics(folder)
    }


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("runs")
    return root / "whole", run_to_end(train_command(root, "whole"))


def test_a_run_ends_with_a_summary_a_report_and_small_log_prob_gaps(whole_run):
    folder, output = whole_run
    assert "accuracy, original questions" in output
    assert (folder / "report.html").stat().st_size > 10_000
    records = comparable(folder)
    assert sorted(records) == list(range(10))
    assert all(records[step]["gap/mean"] <= 1e-5 for step in range(1, 10))
    assert records[9]["teacher/weight"] < records[1]["teacher/weight"]


def test_a_killed_run_resumes_with_the_metrics_of_an_uninterrupted_one(whole_run, tmp_path):
    folder, _ = whole_run
    command = train_command(tmp_path, "killed")
    kill_once(command, lambda: has_recorded(tmp_path / "killed", 3))
    output = run_to_end(command)
    assert "resuming" in output
    whole, resumed = comparable(folder), comparable(tmp_path / "killed")
    assert resumed == whole


def test_the_exported_policy_and_teacher_load_in_transformers_and_differ(whole_run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = whole_run
    states = {}
    for role, flags in (("policy", ()), ("teacher", ("--teacher",))):
        out = tmp_path / role
        run_to_end(corew("export", str(folder), str(out), "--step", "8", *flags))
        AutoTokenizer.from_pretrained(out)
        states[role] = AutoModelForCausalLM.from_pretrained(out).state_dict()
    pairs = [(states["policy"][name], tensor) for name, tensor in states["teacher"].items()]
    assert any(not student.equal(teacher) for student, teacher in pairs)


def test_a_finished_run_says_so_and_ends_well(whole_run):
    folder, _ = whole_run
    output = run_to_end(train_command(folder.parent, "whole"))
    assert "is finished" in output


def test_another_configuration_in_the_same_run_folder_is_refused(whole_run):
    folder, _ = whole_run
    command = [*train_command(folder.parent, "whole"), "optimizer.lr=1e-4"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "optimizer.lr" in done.stderr


def rising_kl(records: dict[int, dict[str, float]]) -> tuple[int, float]:
    """A step from the sixth on at which the mean KL of two steps is higher than ever, and a limit
    between that mean and all earlier ones."""
    means = {
        step: (records[step - 1]["policy/kl"] + records[step]["policy/kl"]) / 2
        for step in range(2, 10)
    }
    for step in range(6, 10):
        before = max(mean for earlier, mean in means.items() if earlier < step)
        if means[step] > before:
            return step, (means[step] + before) / 2
    raise AssertionError(f"the KL does not rise: {means}")


@pytest.mark.slow
def test_a_rollback_that_is_killed_and_resumed_ends_like_one_that_is_not(whole_run, tmp_path):
    step, limit = rising_kl(comparable(whole_run[0]))
    knobs = [
        "checkpoint.every=3",
        "monitor.on_collapse=rollback",
        "monitor.window=2",
        "monitor.patience=1",
        # One signal only, and a rate so low that the policy stands still after the rollback.
        f"monitor.max_kl={limit}",
        "monitor.lr_factor=1e-4",
        "monitor.max_rollbacks=1",
        "monitor.probe_every=0",
        *(f"monitor.{name}=1.0" for name in ("agreement_loss", "unreadable_gain", "teacher_loss")),
        "monitor.top_share=1.0",
        "monitor.distinct_share=0.0",
    ]
    whole, killed = tmp_path / "turned", tmp_path / "killed"
    output = run_to_any_end([*train_command(tmp_path, "turned"), *knobs])
    assert happened(whole)[:2] == [("alarm", step), ("rollback", step)]
    assert "going back to step 3" in output
    records = comparable(whole)
    last = max(records)
    assert sorted(records) == list(range(last + 1))
    assert last > 4
    # Up to the checkpoint nothing changed; after it the rate is a ten thousandth.
    plain = comparable(whole_run[0])
    for before in range(1, 4):
        assert records[before]["policy/lr"] == plain[before]["policy/lr"]
    for after in range(4, last + 1):
        assert records[after]["policy/lr"] == pytest.approx(1e-4 * plain[after]["policy/lr"])
    # The same questions and the same weights answer step 4 alike.
    assert records[4]["reward/mean"] == plain[4]["reward/mean"]
    assert records[4]["policy/kl"] == plain[4]["policy/kl"]

    command = [*train_command(tmp_path, "killed"), *knobs]
    kill_once(command, lambda: has_turned_back(killed))
    run_to_any_end(command)
    assert comparable(killed) == records
    assert happened(killed) == happened(whole)


def run_to_any_end(command: list[str]) -> str:
    """Run to the last step, or until the monitor stops the run: few prompts make noisy figures."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0 or "the run was stopped after step" in done.stderr, done.stderr
    return done.stdout


def happened(folder: Path) -> list[tuple[str, int]]:
    events = read_events(folder)
    return [(event["event"], event["step"]) for event in events if event["event"] != "start"]


def has_turned_back(folder: Path) -> bool:
    """And done a step since."""
    turned = any(event["event"] == "rollback" for event in read_events(folder))
    return turned and read_metrics(folder)[-1]["step"] > 3
