"""The turn contract, pure: what a model may say, how that is told to it, and how what it said is read.

Everything here takes values and returns values, with the standard library alone, so that the agent and the embeddable
library share it. Read ``schema.py``, then ``prompt.py``, then ``parse.py``.
"""

from aerix.turn.parse import Call as Call
from aerix.turn.parse import Turn as Turn
from aerix.turn.parse import TurnError as TurnError
from aerix.turn.parse import parse as parse
from aerix.turn.schema import CALLS as CALLS
from aerix.turn.schema import THOUGHT_CHARS as THOUGHT_CHARS
from aerix.turn.schema import ToolSpec as ToolSpec
from aerix.turn.schema import check_input as check_input
from aerix.turn.schema import check_value as check_value
from aerix.turn.schema import turn_schema as turn_schema
