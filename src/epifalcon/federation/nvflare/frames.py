"""Calls in one frame each way, where NVFlare's Collab would stream them.

A stream is made for large objects on lines that break: a call takes four frames,
two of which only say that the others came, and threads that watch over them. A call
and its answer of at most ``MOST_BYTES`` travel as one plain message of CellNet each,
over the same connections and past the same filters: half the time of processors.

Whatever does not come through like that, in size or in time, is called again as a
stream. A site may thus be asked the same twice.
"""

from collections.abc import Callable
from typing import Any

from nvflare.collab import CollabCallError
from nvflare.collab.api.call_opt import CallOption
from nvflare.collab.runtime.cell_dispatcher import CellDispatcher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

MOST_BYTES = 8 * 2**20
"""Of a frame: a larger one would hold up too long what waits behind it."""
_CHANNEL, _TOPIC = "epifalcon", "answer"
_FAILED, _TOO_LARGE = "epifalcon__failed", "epifalcon__too_large"
"""Headers of answers without bytes: the kind of error; that a stream is needed."""
_PATIENCE_SECONDS = 30.0


class FrameDispatcher(CellDispatcher):
    """Collab's way to one site, in frames where they will do."""

    patience = _PATIENCE_SECONDS
    """How long an answer is waited for before it is asked for as a stream.

    Twice as long after each time: a site or a line may just be slow, and then the
    same would travel twice for nothing.
    """

    def _call_target(
        self,
        context: Any,  # noqa: ANN401
        target_name: str,
        call_opt: CallOption,
        func_name: str,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        call = kwargs.get("call")
        if isinstance(call, bytes) and len(call) <= MOST_BYTES:
            reply = self._ask(call, min(call_opt.timeout, self.patience))
            if (answer := _read(reply)) is not None:
                return answer
            if _code(reply) == ReturnCode.TIMEOUT:
                if call_opt.timeout <= self.patience:
                    raise CollabCallError(target_name, func_name, TimeoutError())
                self.patience *= 2
        return super()._call_target(
            context, target_name, call_opt, func_name, *args, **kwargs
        )

    def _ask(self, call: bytes, seconds: float) -> Message:
        reply: Message = self.cell.core_cell.send_request(
            channel=_CHANNEL,
            topic=_TOPIC,
            target=self.target_fqcn,
            request=Message({}, call),
            timeout=seconds,
            optional=True,
        )
        return reply


def answer_frames(
    cell: Any,  # noqa: ANN401
    server: str,
    answer: Callable[[bytes], bytes | str],
) -> None:
    """Let ``cell`` answer calls that come from the cell ``server``, and no others.

    Like Collab's own check this relies on origins being true, for which NVFlare
    vouches by the certificates of the connections.
    """

    def answered(request: Message) -> Message:
        origin, call = request.get_header(MessageHeaderKey.ORIGIN), request.payload
        if origin != server or not isinstance(call, bytes | bytearray | memoryview):
            refused = ReturnCode.INVALID_REQUEST
            return Message({MessageHeaderKey.RETURN_CODE: refused})
        made = answer(bytes(call))
        if isinstance(made, str):
            return Message({_FAILED: made})
        return (
            Message({_TOO_LARGE: True}) if len(made) > MOST_BYTES else Message({}, made)
        )

    cell.core_cell.register_request_cb(_CHANNEL, _TOPIC, answered)


def _read(reply: Message) -> bytes | str | None:
    """The answer or the kind of the site's error; None where a stream is needed."""
    if _code(reply) != ReturnCode.OK:
        return None
    if (failed := reply.get_header(_FAILED)) is not None:
        return str(failed)
    if reply.get_header(_TOO_LARGE) is not None:
        return None
    given = reply.payload
    return bytes(given) if isinstance(given, bytes | bytearray | memoryview) else None


def _code(reply: Message) -> str:
    return str(reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK))
