"""A process that owns a child and waits to be killed: ``python owner.py GUARD BODY ARGS-AS-JSON``.

It prints the child's pid, and what the child answers to one call, if one is given.
"""

import json
import sys
import threading

from aerix.actors import start
from aerix.actors.process import ProcessActor
from tests.actors.bodies import CODEC, PATIENCE, Do


def main(guard: str, body: str, args: str, *call: str) -> None:
    actor = ProcessActor(body, json.loads(args), CODEC, guard=guard, window=1)  # type: ignore[arg-type]
    ref = start(actor, "owned")
    told = ref.ask(Do(*call), PATIENCE).text if call else ""
    print(actor.pid, told, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
