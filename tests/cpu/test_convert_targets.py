"""What stands where a conversion writes: before it, after it, and when it is ended halfway."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint_tools import hf_to_megatron, megatron_to_hf, partial_folder
from checkpoint_tools.conversion import in_parallel
from checkpoint_tools.megatron_index import read_index
from checkpoint_tools.megatron_writer import Layout
from tests.cpu.conversions import contents_of_files, no_traces


def test_an_existing_target_is_refused_before_any_work(qwen, checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint: need a folder that does not exist yet"):
        hf_to_megatron.convert(qwen, checkpoint, layout=Layout())
    hf_to_megatron.convert(qwen, checkpoint, layout=Layout(tensor=4), overwrite=True)
    assert len(list(checkpoint.glob("__*_0.distcp"))) == 4
    assert no_traces(tmp_path, "checkpoint")


@pytest.mark.parametrize("lost", ["thesis.tex", "model.safetensors"])
def test_what_was_not_written_here_is_never_overwritten(qwen, lost, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "metadata.json").write_text("{}")
    (target / lost).write_text("years of work")
    with pytest.raises(ValueError, match=rf"out: only a folder .* got one with {lost}"):
        hf_to_megatron.convert(qwen, target, layout=Layout(), overwrite=True)
    assert (target / lost).read_text() == "years of work"


def test_a_target_that_is_a_link_is_written_where_it_points(qwen, tmp_path):
    hf_to_megatron.convert(qwen, tmp_path / "real", layout=Layout())
    (tmp_path / "link").symlink_to("real")
    hf_to_megatron.convert(qwen, tmp_path / "link", layout=Layout(tensor=2), overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert len(list((tmp_path / "real").glob("__*"))) == 2
    assert no_traces(tmp_path, "link", "real")


def test_a_partial_folder_that_is_a_link_is_left_alone(qwen, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.tex").write_text("years of work")
    (tmp_path / ".out.partial").symlink_to("victim")
    with pytest.raises(RuntimeError, match="need this name for a folder"):
        hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout())
    assert (tmp_path / "victim" / "thesis.tex").exists()


def test_an_overwritten_target_survives_a_rename_that_fails(qwen, tmp_path, monkeypatch):
    hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout())
    before = contents_of_files(tmp_path / "out")
    rename = Path.rename

    def fail_for_the_new_one(self, target):
        if self.name.endswith(".partial"):
            raise OSError("the disk is gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
    with pytest.raises(OSError, match="the disk is gone"):
        hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout(tensor=2), overwrite=True)
    monkeypatch.undo()
    assert contents_of_files(tmp_path / "out") == before
    assert no_traces(tmp_path, "out")


def test_a_target_that_a_killed_overwrite_has_moved_comes_back(qwen, checkpoint, tmp_path):
    checkpoint.rename(tmp_path / ".checkpoint.replaced")
    with pytest.raises(ValueError, match="checkpoint: need a folder that does not exist yet"):
        hf_to_megatron.convert(qwen, checkpoint, layout=Layout())
    assert no_traces(tmp_path, "checkpoint")


def test_after_a_failure_no_further_item_is_begun():
    begun = []

    def fail_first(item):
        begun.append(item)
        raise KeyError(item)

    with pytest.raises(KeyError, match="0"):
        in_parallel(fail_first, range(100), workers=1)
    assert begun == [0]


KILLED = """
import sys, time
from pathlib import Path
from checkpoint_tools import hf_to_megatron, megatron_to_hf, partial_folder
from checkpoint_tools.megatron_writer import Layout, MegatronWriter
write = MegatronWriter.write
def slow(self, file, build):
    write(self, file, build)
    print("written", flush=True)
    time.sleep(60)
MegatronWriter.write = slow
hf_to_megatron.convert(Path(sys.argv[1]), Path(sys.argv[2]), layout=Layout(tensor=2), workers=1)
"""


def test_a_killed_conversion_leaves_nothing_that_looks_finished_and_starts_again(qwen, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(qwen), str(tmp_path / "out")], stdout=subprocess.PIPE
    )
    assert process.stdout.readline().split()[-1] == b"written"
    process.kill()
    process.communicate()
    assert no_traces(tmp_path, ".out.partial")
    with pytest.raises(ValueError, match=r"without \.metadata"):
        read_index(tmp_path / ".out.partial")
    hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout(tensor=2))
    assert no_traces(tmp_path, "out")


@pytest.mark.parametrize("call", ["posix_fallocate", "fdatasync", "fsync"])
def test_a_disk_that_fails_while_it_is_written_leaves_nothing(
    qwen, checkpoint, call, tmp_path, monkeypatch
):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    monkeypatch.setattr(partial_folder, "_FLUSHED_BYTES", 1000)
    with pytest.raises(RuntimeError, match=r"out: .*No space left on device"):
        hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout())
    with pytest.raises(RuntimeError, match=r"out: .*No space left on device"):
        megatron_to_hf.convert(checkpoint, tmp_path / "out")
    assert no_traces(tmp_path, "checkpoint")


def test_space_is_reserved_for_every_file_that_is_written_in_any_order(qwen, tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(os, "posix_fallocate", lambda file, start, size: reserved.append(size))
    hf_to_megatron.convert(qwen, tmp_path / "ckpt", layout=Layout(tensor=2))
    files = sorted((tmp_path / "ckpt").glob("__*.distcp"))
    assert len(reserved) == len(files) == 2
    assert all(size > file.stat().st_size for size, file in zip(reserved, files, strict=True))
    reserved.clear()
    megatron_to_hf.convert(tmp_path / "ckpt", tmp_path / "back", shard_bytes=20e3)
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert reserved == [file.stat().st_size for file in files]
    assert len(files) > 2


def test_a_file_ends_where_its_last_tensor_ends(qwen, tmp_path):
    hf_to_megatron.convert(qwen, tmp_path / "ckpt", layout=Layout(tensor=2))
    ends = {}
    for stored in read_index(tmp_path / "ckpt").storage_data.values():
        end = stored.offset + stored.length
        ends[stored.relative_path] = max(end, ends.get(stored.relative_path, 0))
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "ckpt").glob("*.distcp")}
    assert ends == sizes


def test_every_byte_is_flushed_before_a_folder_gets_its_name(qwen, tmp_path, monkeypatch):
    flushed, rename = set(), Path.rename
    fsync = os.fsync

    def note(descriptor):
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def check_before(self, target):
        left = {str(path) for path in self.rglob("*")} - flushed
        assert not left, left
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check_before)
    hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout(tensor=2))
    assert str(tmp_path) in flushed
