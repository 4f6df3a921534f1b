"""The server of a live report, and the commands that look at recorded runs."""

import http.client
import threading

import pytest
from typer.testing import CliRunner

from megatron_corew.cli import app
from megatron_corew.observe.metrics import MetricLog
from megatron_corew.observe.watch import ReportServer


def record(folder, steps, **metrics) -> None:
    with MetricLog(folder, tensorboard=False, wandb_project=None, config_dict={}) as log:
        for step in steps:
            log.log(step, {"reward/mean": step / 100} | metrics)


@pytest.fixture
def server(tmp_path):
    with ReportServer([tmp_path], host="127.0.0.1", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server, path: str, host: str | None = None) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_page_follows_the_records(server, tmp_path):
    record(tmp_path, [1, 2])
    before = get(server, "/version")[1]
    status, page, headers = get(server, "/")
    assert status == 200
    assert "2 of ? steps" in page
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert get(server, "/version")[1] == before
    record(tmp_path, [3])
    # It looks again after a rest in proportion to the work of a page.
    while get(server, "/version")[1] == before:
        pass
    assert "3 of ? steps" in get(server, "/")[1]


def test_a_run_without_records_says_so_and_the_browser_asks_again(server):
    status, page, _ = get(server, "/")
    assert status == 503
    assert "need recorded metrics, got none" in page
    assert "http-equiv=refresh" in page


@pytest.mark.parametrize(
    "path", ["/metrics.jsonl", "/../", "/config.yaml", "/checkpoints/", "/?x", "/%2e%2e/"]
)
def test_nothing_but_the_page_is_served(server, tmp_path, path):
    record(tmp_path, [1])
    assert get(server, path)[0] == 404


def test_a_page_from_elsewhere_cannot_read_it_under_another_name(server, tmp_path):
    record(tmp_path, [1])
    assert get(server, "/", host="evil.example")[0] == 403
    assert get(server, "/", host=f"localhost:{server.server_port}")[0] == 200


def corew(*arguments: str):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_report_writes_one_page_for_several_runs(tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        record(folder, [1, 2])
    done = corew("report", *folders, "-o", tmp_path / "page.html")
    assert done.exit_code == 0
    assert "2 runs compared" in (tmp_path / "page.html").read_text()
    refused = corew("report", *folders)
    assert refused.exit_code == 1
    assert "--out" in refused.output


def test_monitor_replays_a_run_under_other_thresholds(tmp_path):
    run = tmp_path / "mine"
    run.mkdir()
    (run / "config.yaml").write_text(
        "method: majority_vote\nrun: {name: mine, steps: 20}\nmodel: {path: lab}\n"
        "data: {train: lab}\n"
    )
    record(run, range(1, 21), **{"policy/kl": 0.1, "reward/accuracy": 0.5})
    silent = corew("monitor", run)
    assert silent.exit_code == 0
    assert silent.output == "mine: silent; accuracy 0.500 -> 0.500, best 0.500\n"
    strict = corew("monitor", run, "monitor.max_kl=0.05")
    assert "mine: false alarm" in strict.output
    # Six steps fill the windows, two more the patience.
    assert "step     8  drift: The policy has moved far" in strict.output
    # One run needs no sum, two have one: a row of the method and one of all.
    assert "false alarms" not in strict.output
    table = corew("monitor", run, run, "monitor.max_kl=0.05").output.splitlines()[-3:]
    assert [line.split()[:6] for line in table[1:]] == [
        [name, "2", "0", "0", "0", "2"] for name in ("majority_vote", "all")
    ]


def test_monitor_says_plainly_that_a_run_is_too_short_for_an_accuracy(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "method: majority_vote\nrun: {name: mine, steps: 2}\nmodel: {path: lab}\n"
        "data: {train: lab}\n"
    )
    record(tmp_path, [1, 2], **{"reward/accuracy": 0.5})
    done = corew("monitor", tmp_path, "monitor.window=3")
    assert done.exit_code == 0
    assert "unknown; no accuracy: fewer than 3 steps (monitor.window) have true" in done.output
    assert "nan" not in done.output


@pytest.mark.parametrize("command", ["report", "monitor", "watch"])
def test_a_folder_that_is_not_there_is_one_line(command, tmp_path):
    done = corew(command, tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "need the folder of a run" in done.output


def test_watch_names_the_port_that_is_taken(tmp_path, server):
    done = corew("watch", tmp_path, "--port", server.server_port)
    assert done.exit_code == 1
    assert f"got {server.server_port}" in done.output
