#!/usr/bin/env python3
"""How long clients wait when of a fleet of four servers one is killed and one frozen: 64 streams of /generate, all of
them in the middle, on those two; the router has its default options, or those that are given.

    CLIME_BUILD=build tests/bench/bench_failover.py [router options]

Prints when, after the fault, the first and the last of them were whole, and how
many equal the undisturbed answer. Needs stories260K as the tests do."""

import concurrent.futures
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
from programs import program, server
from test_resumed_replies import lasting
from test_router_faults import wait_for
from test_router_replay import bodies, gated, stream, undisturbed

N_STREAMS = 64
MANY = ("--http-threads", "160")


def timed(router, body):
    outs = stream(router, body)
    return time.monotonic(), outs


def main(words):
    print("load", *(f"{x:.1f}" for x in os.getloadavg()), "before")
    with gated(2, threads=160) as (dying, freezing), server(*MANY) as third, server(*MANY) as fourth, program("clime-router", *words) as router, \
         concurrent.futures.ThreadPoolExecutor(N_STREAMS) as pool:  # fmt: skip
        for g in dying, freezing:
            router.post("/workers", {"url": g.url})
        wanted = [body for _ in range(N_STREAMS // 16) for body in bodies()]
        asked = [(body, pool.submit(timed, router, body)) for body in wanted]
        wait_for(lambda: dying.held + freezing.held >= N_STREAMS)
        for s in third, fourth:
            router.post("/workers", {"url": s.url})
        fault = time.monotonic()
        freezing.server.process.send_signal(signal.SIGSTOP)
        dying.server.process.kill()
        done = [(body, *answer.result(600)) for body, answer in asked]
        after = sorted(t - fault for _, t, _ in done)
        equal = sum(all(lasting(a) == lasting(b) for a, b in zip(outs, undisturbed(third, body, outs)))
                    for body, _, outs in done)  # fmt: skip
    print("load", *(f"{x:.1f}" for x in os.getloadavg()), "after")
    print(f"{len(done)} streams, {dying.held} of the killed and {freezing.held} of the frozen worker; {equal} as undisturbed")
    print("whole after the fault, s: first %.2f, median %.2f, last %.2f" % (after[0], after[len(after) // 2], after[-1]))


if __name__ == "__main__":
    main(sys.argv[1:])
