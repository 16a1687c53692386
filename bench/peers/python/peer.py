"""Locks of redis-py and kazoo, for the benchmark; README.md beside this folder has the protocol."""

import json
import math
import os
import sys
import threading
import time
from importlib.metadata import version

MAX_CYCLES = 5_000_000


def redis_py(server, _tasks):
    import redis

    host, port = server.rsplit(":", 1)
    client = redis.Redis(host=host, port=int(port))
    return lambda name, _task: client.lock(name, timeout=10, sleep=0.001)


def kazoo(server, _tasks):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=server, timeout=10)
    client.start(timeout=10)
    return lambda name, task: client.Lock("/kazoo/" + name, f"task {task}")


PEERS = {"redis-py": (redis_py, "redis"), "kazoo": (kazoo, "kazoo")}


def bucket(nanos):
    return int(16 * math.log2(max(nanos, 1)))


class Task(threading.Thread):
    """One thread that takes and gives back one lock until its time is over."""

    def __init__(self, lock, end):
        super().__init__()
        self.lock, self.end = lock, end
        self.grants, self.wait, self.cycle, self.error = 0, {}, {}, None

    def run(self):
        try:
            self.cycles()
        except Exception as e:  # told by the main thread, which ends the program
            self.error = e

    def cycles(self):
        now = time.monotonic_ns()
        while now < self.end and self.grants < MAX_CYCLES:
            start = now
            self.lock.acquire()
            granted = time.monotonic_ns()
            self.lock.release()
            now = time.monotonic_ns()
            self.grants += 1
            for histogram, nanos in ((self.wait, granted - start), (self.cycle, now - start)):
                at = bucket(nanos)
                histogram[at] = histogram.get(at, 0) + 1


def run(locks, millis):
    start = time.monotonic_ns()
    tasks = [Task(lock, start + millis * 1_000_000) for lock in locks]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
        if task.error is not None:
            raise task.error
    result = {"seconds": (time.monotonic_ns() - start) / 1e9, "grants": [t.grants for t in tasks]}
    for what in ("wait", "cycle"):
        total = {}
        for task in tasks:
            for at, count in getattr(task, what).items():
                total[at] = total.get(at, 0) + count
        result[what] = total
    return result


def main():
    peer, server, tasks, names, warm, length, prefix = sys.argv[1:]
    tasks, names, warm, length = int(tasks), int(names), int(warm), int(length)
    deadline = threading.Timer((warm + length) / 1000 + 60, os._exit, [3])
    deadline.daemon = True
    deadline.start()
    connect, package = PEERS[peer]
    make = connect(server, tasks)
    locks = [make(f"{prefix}-{task % names}", task) for task in range(tasks)]
    run(locks, warm)
    print(json.dumps({"ready": f"{peer} {version(package)}, Python {sys.version.split()[0]}"}), flush=True)
    if not sys.stdin.readline():
        os._exit(0)
    # The main thread waits for the end of the input: it may come before the run is over.
    threading.Thread(target=lambda: report(locks, length), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def report(locks, length):
    try:
        print(json.dumps(run(locks, length)), flush=True)
    except Exception as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
        os._exit(1)


main()
