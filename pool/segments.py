"""What holds for the segments of every context, whichever way its model is reached."""

from collections.abc import Sequence
from itertools import dropwhile

from aerix.actors import Refused
from aerix.pool.bounds import SEGMENTS
from aerix.pool.protocol import Segment


def check_segments(segments: Sequence[Segment]) -> Sequence[Segment]:
    """The segments as they are. Raises Refused where a context cannot have them, or not in this order."""
    if len(segments) > SEGMENTS.count:
        raise Refused("too_many_segments", f"{len(segments)} segments are more than {SEGMENTS.count}.")
    if len({segment.id for segment in segments}) < len(segments):
        raise Refused("duplicate_segment", "Two segments of a context have the same id.")
    roles = [segment.role for segment in segments]
    if "system" in dropwhile(lambda role: role == "system", roles):
        raise Refused("late_system", "System segments stand at a context's start, before all others.")
    return segments


def index_of(segments: Sequence[Segment], name: str) -> int:
    """Where the segment with this id stands. Raises Refused ``unknown_segment``."""
    for at, segment in enumerate(segments):
        if segment.id == name:
            return at
    raise Refused("unknown_segment", f"The context has no segment {name}.")
