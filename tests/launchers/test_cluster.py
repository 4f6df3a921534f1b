"""Facts of a cluster are checked before anything is submitted, by their key."""

from pathlib import Path

import pytest
import yaml

from launchers.cluster import check_here, load_cluster
from tests.launchers.facts import cluster_of

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "configs" / "clusters").glob("*.yaml"))
FACTS = {
    "scheduler": "slurm",
    "workdir": "/shared/corew",
    "python": "/opt/venv/bin/python",
    "cache": "/shared/cache",
    "gpus_per_node": 8,
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid(path):
    assert load_cluster(path).workdir


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus_per_node": "many"}, "gpus_per_node: need a valid integer"),
        ({"partitoin": "gpu"}, "partitoin: unknown key"),
        ({"workdir": "relative"}, "workdir: need"),
        ({"time_limit": 14400}, "time_limit: need a valid string"),
        ({"time_limit": "4h"}, "time_limit"),
        ({"secrets": ["HF_TOKEN=abc"]}, r"secrets\.0: need"),
        ({"container": "image", "mounts": ["/shared/cache:/shared/cache"]}, "need workdir"),
        ({"container": "image", "mounts": ["/shared:/other"]}, "Add /shared/corew:/shared/corew"),
        ({"mounts": ["/shared:/shared"]}, "mounts: need a container"),
        ({"scheduler": "none", "partition": "gpu"}, "partition: needs scheduler slurm"),
    ],
)
def test_a_wrong_fact_is_refused_by_its_key(tmp_path, change, message):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(FACTS | change))
    with pytest.raises(ValueError, match=message):
        load_cluster(file)


def test_a_missing_fact_and_a_missing_file_are_refused(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("scheduler: slurm\n")
    with pytest.raises(ValueError, match="workdir: needed, got nothing"):
        load_cluster(file)
    with pytest.raises(ValueError, match="--cluster"):
        load_cluster(tmp_path / "none.yaml")


@pytest.fixture
def good(tmp_path: Path) -> dict[str, object]:
    """Facts that fit this machine."""
    (tmp_path / "python").touch()
    return {"workdir": str(tmp_path), "python": str(tmp_path / "python"), "cache": str(tmp_path)}


def test_a_machine_that_has_all_that_a_job_needs_passes(good):
    check_here(cluster_of(**good), ("bash",))


@pytest.mark.parametrize(
    ("change", "programs", "message"),
    [
        ({}, ("no-such-program",), "no-such-program"),
        ({"secrets": ["COREW_TEST_SECRET"]}, (), "COREW_TEST_SECRET"),
        ({"workdir": "/no/such/folder"}, (), "workdir: need an existing folder"),
        ({"python": "/no/such/python"}, (), "python: need an interpreter"),
    ],
)
def test_a_machine_that_lacks_something_is_refused(good, change, programs, message):
    with pytest.raises(ValueError, match=message):
        check_here(cluster_of(**good | change), programs)


def test_a_missing_image_or_mount_is_refused(good, tmp_path):
    mounts = [f"{tmp_path}:{tmp_path}"]
    with pytest.raises(ValueError, match="container: need an existing image"):
        check_here(cluster_of(**good, container=f"{tmp_path}/no.sqsh", mounts=mounts), ())
    with pytest.raises(ValueError, match="mounts: need an existing folder, got /no/such"):
        check_here(cluster_of(**good, container="tag", mounts=[*mounts, "/no/such:/data"]), ())


def test_a_secret_that_is_set_passes(good, monkeypatch):
    monkeypatch.setenv("COREW_TEST_SECRET", "value")
    check_here(cluster_of(**good, secrets=["COREW_TEST_SECRET"]), ())
