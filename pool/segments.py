"""What holds for the segments of every context, whichever way its model is reached."""

from collections.abc import Collection, Sequence
from itertools import dropwhile

from aerix.actors import Refused
from aerix.pool.bounds import SEGMENTS
from aerix.pool.protocol import Role, Segment


def check_segments(
    segments: Sequence[Segment], ids: Collection[str] = (), last: Role | None = None
) -> Sequence[Segment]:
    """The segments as they are. Raises Refused where a context cannot have them, or not in this order.

    Before them stand others with these ``ids``, the ``last`` of which has this role.
    """
    count = len(ids) + len(segments)
    if count > SEGMENTS.count:
        raise Refused("too_many_segments", f"{count} segments are more than {SEGMENTS.count}.")
    new = {segment.id for segment in segments}
    if len(new) < len(segments) or any(one in ids for one in new):
        raise Refused("duplicate_segment", "Two segments of a context have the same id.")
    roles = [*([] if last is None else [last]), *(segment.role for segment in segments)]
    if "system" in dropwhile(lambda role: role == "system", roles):
        raise Refused("late_system", "System segments stand at a context's start, before all others.")
    return segments


def index_of(segments: Sequence[Segment], name: str) -> int:
    """Where the segment with this id stands. Raises Refused ``unknown_segment``."""
    for at, segment in enumerate(segments):
        if segment.id == name:
            return at
    raise Refused("unknown_segment", f"The context has no segment {name}.")
