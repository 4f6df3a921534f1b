"""Scheduler loaded inside a vLLM server: one sampling call always runs as the same batches.

Floating-point results can depend on which sequences share a batch, and a stock server forms
batches by arrival time. Here the requests of one call are held back until the last one is in,
then start together in a fixed order from an empty prefix cache, so that a call with the same
weights and seeds gives the same bits. Stop strings are found by the engine itself: the stock
server finds them in its front end and tells the engine some steps later, at no fixed step.

Requests without the keys below are scheduled as usual. Written for vLLM 0.32.
"""

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.request import Request, RequestStatus

BATCH, SIZE, FIRST, SEEDS = "corew_batch", "corew_size", "corew_first", "corew_seeds"
"""Keys in the extra arguments of a completions request: name of the call, sequences of the call
on this server, place of the request's first prompt in the call, and one seed per prompt of the
request (sample k of a prompt gets seed + k; the request's own ``seed`` must be 0)."""


def admit(request: Request) -> tuple[str, int, tuple[int, int]] | None:
    """Give a request its own seed and say where it belongs.

    The prompts of one completions request share their parameters, and vLLM tells them apart
    only by the engine's request id, ``[<sample>_]cmpl-<id>-<prompt>-<random>``.

    Returns:
        Call, size of the call, and (prompt, sample) to sort by; None for a stranger's request.
    """
    params = request.sampling_params
    if params is None or not params.extra_args or BATCH not in params.extra_args:
        return None
    extra = params.extra_args
    prompt, sample = int(request.request_id.rsplit("-", 2)[1]), params.seed or 0
    params.seed = extra[SEEDS][prompt] + sample
    return extra[BATCH], extra[SIZE], (extra[FIRST] + prompt, sample)


class BatchGate(Scheduler):  # type: ignore[misc]
    """The stock scheduler behind a gate that opens when a call is complete."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._held: dict[str, dict[str, tuple[tuple[int, int], Request]]] = {}
        self._texts: WeakKeyDictionary[Request, IncrementalDetokenizer] = WeakKeyDictionary()

    def add_request(self, request: Request) -> None:
        """Hold a request of an incomplete call; start all of them with the last one."""
        where = admit(request)
        if where is None:
            super().add_request(request)
            return
        batch, size, order = where
        held = self._held.setdefault(batch, {})
        held[request.request_id] = (order, request)
        if len(held) < size:
            return
        del self._held[batch]
        if not self.running:
            # Blocks cached by an earlier call would change which tokens share a forward pass.
            self.reset_prefix_cache()
        for _, ready in sorted(held.values(), key=lambda item: item[0]):
            super().add_request(ready)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Abort requests as the stock scheduler does, those behind the gate included."""
        if request_ids is not None:
            request_ids = {request_ids} if isinstance(request_ids, str) else set(request_ids)
        finished: list[Request] = super().finish_requests(request_ids, finished_status)
        for batch, held in list(self._held.items()):
            gone = held.keys() if request_ids is None else held.keys() & request_ids
            for request_id in list(gone):
                _, request = held.pop(request_id)
                request.status = finished_status
                finished.append(request)
            if not held:
                del self._held[batch]
        return finished

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        new_token_ids, stopped = super()._update_request_with_output(
            request, new_token_ids, is_stale
        )
        params = request.sampling_params
        if stopped or params is None or not params.stop:
            return new_token_ids, stopped
        text = self._texts.get(request)
        if text is None:
            tokenizer = cached_tokenizer_from_config(self.vllm_config.model_config)
            # A Request has every field of an EngineCoreRequest that the detokenizer reads.
            text = IncrementalDetokenizer.from_new_request(tokenizer, request)
            self._texts[request] = text
        if text.update(new_token_ids, False) is not None:
            # The front end finds the same string in the same tokens and reports ``stop``; with
            # FINISHED_STOPPED it would take the last token for an end token and cut its text.
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            stopped = True
        return new_token_ids, stopped
