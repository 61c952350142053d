"""What tests/gpu/timeline.c has recorded of each process of a run, summed up: its streams, how long each was busy, with what, and
between which two operations the busiest one was idle.

    python3 tests/gpu/timeline.py DIR [NAME] [MOST]

NAME: of a kernel that ends what is looked at, such as adamw: from its second last burst (one that 50 ms without it follow) to
its last, which is a step of training. Default: all. MOST: rows of a stream (20).
"""

import collections
import pathlib
import sys

PAUSE_NS = 50_000_000
IDLE_NS = 5_000


def read(path):
    """(start, end, stream, bytes, name) of each operation, by start."""
    rows = []
    for line in path.read_text().splitlines():
        parts = line.split(" ", 4)
        if len(parts) == 5:  # the last one may be cut off
            rows.append((*map(int, parts[:4]), parts[4]))
    return sorted(rows)


def last_step(rows, name):
    ends = [end for _, end, _, _, n in rows if name in n]
    bursts = [a for a, b in zip(ends, [*ends[1:], ends[-1] + 2 * PAUSE_NS]) if b - a > PAUSE_NS] if ends else []
    if len(bursts) < 2:
        return rows
    return [row for row in rows if row[0] >= bursts[-2] and row[1] <= bursts[-1]]


def idle(rows):
    """(nanoseconds, between whom) of each time in which nothing of these runs."""
    busy_until, last = rows[0][1], rows[0][4]
    for start, end, _, _, name in rows[1:]:
        if start - busy_until > IDLE_NS:
            yield start - busy_until, (last, name)
        if end > busy_until:
            busy_until, last = end, name


def print_stream(stream, rows, most):
    by_name, gaps = collections.defaultdict(lambda: [0, 0, 0]), collections.Counter()
    for start, end, _, size, name in rows:
        of = by_name[name]
        of[0] += end - start
        of[1] += 1
        of[2] += size
    for ns, between in idle(rows):
        gaps[between] += ns
    busy = sum(of[0] for of in by_name.values())
    print(f"  stream {stream}: {len(rows)} operations, {busy / 1e6:.1f} ms; idle in between {sum(gaps.values()) / 1e6:.1f} ms")
    for name, (ns, n, size) in sorted(by_name.items(), key=lambda item: -item[1][0])[:most]:
        rate = f"  {size / max(1, ns):.0f} GB/s" if name.endswith(("copies", "computes", "memset")) else ""
        print(f"    {ns / 1e6:9.2f} ms {n:6} x {ns / n / 1e3:9.1f} us  {name[:100]}{rate}")
    for (before, after), ns in gaps.most_common(most // 2):
        print(f"    {ns / 1e6:9.2f} ms idle between {before[:60]} and {after[:60]}")


def main():
    folder, name = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    most = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    for path in sorted(folder.iterdir()):
        rows = read(path)
        rows = last_step(rows, name) if name else rows
        if not rows:
            continue
        print(f"process {path.name}: {(max(row[1] for row in rows) - rows[0][0]) / 1e6:.1f} ms")
        streams = collections.defaultdict(list)
        for row in rows:
            streams[row[2]].append(row)
        for stream, of in sorted(streams.items(), key=lambda item: -sum(row[1] - row[0] for row in item[1])):
            print_stream(stream, of, most)


if __name__ == "__main__":
    main()
