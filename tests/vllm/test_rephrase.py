"""`corew rephrase` starts a real vLLM server, asks it, and ends it again."""

import json
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatron_corew.cli import app
from megatron_corew.data.prepare.schema import read_prepared
from megatron_corew.preflight import LAB_POLICY

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(180)]

RECIPE = """
model: none
dtype: float32
max_model_len: 128
prompt: {chat: false, template: "{question}"}
sampling: {max_tokens: 16, temperature: 1.0, top_p: 1.0}
check: {refuse: [missing, identical], attempts: 2}
preserve: {samples: 2, max_tokens: 24}
servers: {kv_cache_gb: 0.2, start_timeout_s: 170}
"""


def test_a_server_that_the_command_started_rewrites_and_is_gone_after(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    raw = tmp_path / "sums.jsonl"
    raw.write_text("".join(json.dumps({"prompt": f"{at}+{at + 1}="}) + "\n" for at in range(8)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    out = tmp_path / "new"
    for command in (
        ["prepare", str(raw), "--out", str(tmp_path / "sums")],
        [
            *("rephrase", str(tmp_path / "sums"), "--recipe", str(recipe), "--out", str(out)),
            *("--model", str(LAB_POLICY)),
        ],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    attempts = [json.loads(line) for line in (out / "attempts.jsonl").read_text().splitlines()]
    assert {one["id"] for one in attempts} == {f"sums-{at}" for at in range(8)}
    accepted = [one for one in attempts if one["fault"] is None]
    rows = read_prepared(str(out), knob="DATA")
    assert [row.rephrasing for row in rows] == [
        one["rephrased"] for row in rows for one in accepted if one["id"] == row.id
    ]
    assert len(rows) == len(accepted) > 0
    # Both versions of an accepted question were solved: the policy answers in boxes.
    assert all("answers:" in one["detail"] for one in accepted)
    port = re.search(r"'port': (\d+)", (out / "server.log").read_text())
    assert port is not None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0
