"""One weight update of one or more servers, through files in a folder that all of them see."""

import secrets
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Protocol, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


class UpdateClient(Protocol):
    """The calls of a weight update, in their order; see ``client.ServerClient``."""

    def begin_update(self) -> None: ...

    def send_bucket(self, path: str) -> None: ...

    def finish_update(self, version: str) -> None: ...


class WeightPush:
    """Sends tensors to all servers in buckets; its folder is gone when it closes."""

    def __init__(
        self,
        clients: Sequence[UpdateClient],
        *,
        parent: Path,
        bucket_bytes: int,
        dtype: torch.dtype,
    ) -> None:
        self._clients = clients
        self._parent = parent
        self._bucket_bytes = bucket_bytes
        self._dtype = dtype
        self._folder: Path | None = None
        self._bucket: dict[str, Tensor] = {}
        self._used_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def begin(self) -> None:
        """Make the folder, readable by this user only, and begin the update on every server."""
        self._folder = Path(mkdtemp(prefix="corew-", dir=self._parent))
        self._on_all(lambda client: client.begin_update())

    def add(self, name: str, tensor: Tensor) -> None:
        """Put one tensor into the bucket; a bucket that would get too large is sent before.

        Args:
            name: Hugging Face name.
            tensor: whole tensor, on any device; it is copied, so the caller may reuse it.
        """
        copy = torch.empty(tensor.shape, dtype=self._dtype)
        copy.copy_(tensor.detach())
        if self._used_bytes and self._used_bytes + copy.nbytes > self._bucket_bytes:
            self._send()
        self._bucket[name] = copy
        self._used_bytes += copy.nbytes

    def finish(self, version: str) -> None:
        """Send what is left and put the weights in force on every server."""
        if self._bucket:
            self._send()
        self._on_all(lambda client: client.finish_update(version))

    def _send(self) -> None:
        assert self._folder is not None, "add() came before begin()"
        path = self._folder / f"{secrets.token_hex(8)}.safetensors"
        path.touch(mode=0o600)
        try:
            save_file(self._bucket, path)
        except SafetensorError as error:
            raise RuntimeError(
                f"weight push: cannot write {self._used_bytes / 1e6:.0f} MB to {self._folder}: "
                f"{error}. Free {self._parent} or lower servers.bucket_mb."
            ) from error
        path.chmod(0o600)
        self._on_all(lambda client: client.send_bucket(str(path)))
        # A server keeps its mapping of the file until it has copied what it needs.
        path.unlink()
        self._bucket, self._used_bytes = {}, 0

    def _on_all(self, call: Callable[[UpdateClient], None]) -> None:
        """Make one call to every server at the same time; raise the first error."""
        with ThreadPoolExecutor(max_workers=len(self._clients)) as threads:
            for _ in threads.map(call, self._clients):
                pass
