#!/usr/bin/env python3
"""Draws the plots of the documentation and fills the figures of README.md, from the tables in docs/performance.md.

Usage: plot.py

Writes docs/speed.svg, docs/memory.svg, and the table between "figures: begin" and "figures: end" in README.md. Run it
after every change of docs/performance.md. It needs only Python's standard library.
"""

import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"

# Rows of the speed plot, by their names in performance.md.
SPEED_ROWS = [
    "PING", "SET", "GET", "INCR", "LPUSH", "SADD", "HSET", "ZADD", "XADD", "MGET of 10", "MSET of 10", "LRANGE of 300",
]
# Rows of the memory plot: name in performance.md, label.
MEMORY_ROWS = [
    ("16 + 100 B, 6.3 million", "key, 16 + 100 B"),
    ("16 + 10 B, 2.5 million", "key, 16 + 10 B"),
    ("16 + 100 B with expiry, 2.5 million", "key with expiry"),
    ("hashes of 50 fields, 18 + 10 B (listpacks)", "field, small hashes"),
    ("one hash, 1.9 million fields, 18 + 10 B", "field, large hash"),
    ("one set, 1.9 million members of 19 B", "member, large set"),
    ("one sorted set, 1.9 million members of 19 B", "member, large zset"),
    ("one list, 3 million elements of 10 B", "element, list"),
    ("one stream, 2 million entries of two fields", "entry, stream"),
]
# Rows of the table in README.md: name in performance.md, text, unit, decimals.
README_ROWS = [
    ("SET", "SET, 16 pipelined, CPU per command", "us", 2),
    ("GET", "GET", "us", 2),
    ("MSET of 10", "MSET of 10 keys", "us", 2),
    ("HSET", "HSET", "us", 2),
    ("ZADD", "ZADD", "us", 2),
    ("XADD", "XADD", "us", 2),
    ("LRANGE of 300", "LRANGE of 300 elements", "us", 2),
    ("ZRANK", "ZRANK in three million members", "us", 1),
    ("16 + 100 B, 6.3 million", "memory per key of 16 B with a value of 100 B", "B", 0),
    ("16 + 10 B, 2.5 million", "memory per key of 16 B with a value of 10 B", "B", 0),
    ("one sorted set, 1.9 million members of 19 B", "memory per member of a large sorted set", "B", 0),
    ("one hash, 1.9 million fields, 18 + 10 B", "memory per field of a large hash", "B", 0),
    ("one set, 1.9 million members of 19 B", "memory per member of a large set", "B", 0),
]

# Mid-tones that are readable on a light and on a dark background, which an image cannot know.
TEXT, GRID, KVICK, REDIS = "#76808c", "#9aa3ad", "#3b82f6", "#a8794a"
LABEL_WIDTH, BAR_WIDTH, ROW_HEIGHT = 140, 430, 26
# The right end of the axis, as a multiple of Valkey's figure.
AXIS_END = 1.75


def figures():
    """The rows of all tables that have a column for Kvick, by name: numbers for Kvick, Valkey and, if given, Redis."""
    found, columns = {}, []
    for line in PERFORMANCE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if "Kvick" in cells:
            servers = ("Kvick", "Valkey 9.1.2", "Redis 8.0.6")
            columns = [at for at, cell in enumerate(cells) if cell in servers]
        elif not cells:
            columns = []
        elif columns:
            numbers = [re.match(r"[\d.]+", cells[at]) for at in columns]
            if all(numbers):
                found.setdefault(cells[0], [float(number[0]) for number in numbers])
    return found


def plot(title, rows, has_redis):
    """An SVG with one bar per row and server, relative to Valkey; rows are (label, [Kvick, Valkey, Redis])."""
    x_of = lambda ratio: LABEL_WIDTH + BAR_WIDTH * min(ratio, AXIS_END) / AXIS_END
    top, width = 62, LABEL_WIDTH + BAR_WIDTH + 20
    height = top + ROW_HEIGHT * len(rows) + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="16" font-size="14" font-weight="600">{escape(title)}</text>',
        f'<rect x="{LABEL_WIDTH}" y="28" width="10" height="10" fill="{KVICK}"/>'
        f'<text x="{LABEL_WIDTH + 15}" y="37">Kvick</text>',
    ]
    if has_redis:
        out.append(
            f'<rect x="{LABEL_WIDTH + 70}" y="28" width="10" height="10" fill="{REDIS}"/>'
            f'<text x="{LABEL_WIDTH + 85}" y="37">Redis 8</text>'
        )
    for ratio in (0, 0.5, 1, 1.5):
        x = f"{x_of(ratio):.1f}"
        stroke, opacity, label = (TEXT, 1, "Valkey 9.1 = 1") if ratio == 1 else (GRID, 0.35, f"{ratio:g}")
        out.append(
            f'<line x1="{x}" y1="{top - 8}" x2="{x}" y2="{height - 8}" stroke="{stroke}" stroke-opacity="{opacity}"/>'
            f'<text x="{x}" y="{top - 12}" text-anchor="middle">{label}</text>'
        )
    for at, (label, (ours, valkey, *redis)) in enumerate(rows):
        y = top + ROW_HEIGHT * at
        out.append(f'<text x="{LABEL_WIDTH - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        bars = [(ours / valkey, KVICK, y + 1)] + [(other / valkey, REDIS, y + 12) for other in redis if has_redis]
        for ratio, color, bar_y in bars:
            bar_height = 9 if has_redis else 16
            bar_width = x_of(ratio) - LABEL_WIDTH
            size = f'width="{bar_width:.1f}" height="{bar_height}"'
            out.append(f'<rect x="{LABEL_WIDTH}" y="{bar_y}" {size} fill="{color}"/>')
            inside_y = bar_y + bar_height - 1 if has_redis else bar_y + 12
            out.append(f'<text x="{x_of(ratio) + 5:.1f}" y="{inside_y}" font-size="11">{ratio:.2f}</text>')
    return "\n".join([*out, "</svg>", ""])


def table(found):
    """The lines of the table in README.md."""
    lines = ["| workload | Kvick | Valkey 9.1 | Redis 8 |", "| --- | --- | --- | --- |"]
    for name, text, unit, decimals in README_ROWS:
        cells = [f"{number:.{decimals}f} {unit}" for number in found[name]]
        lines.append("| " + " | ".join([text, *cells, *[""] * (3 - len(cells))]).rstrip() + " |")
    return lines


def main():
    found = figures()
    missing = {*SPEED_ROWS, *(row[0] for row in MEMORY_ROWS), *(row[0] for row in README_ROWS)} - set(found)
    if missing:
        sys.exit(f"no such rows in {PERFORMANCE}: {', '.join(sorted(missing))}")
    speed = [(name, found[name]) for name in SPEED_ROWS]
    title = "Server CPU time per command, 16 pipelined (lower is better)"
    (ROOT / "docs" / "speed.svg").write_text(plot(title, speed, has_redis=True))
    memory = [(label, found[name]) for name, label in MEMORY_ROWS]
    title = "Memory per key or element (lower is better)"
    (ROOT / "docs" / "memory.svg").write_text(plot(title, memory, has_redis=False))
    text = README.read_text()
    pattern = r"(<!-- figures: begin[^\n]*-->\n).*?(\n<!-- figures: end -->)"
    if not re.search(pattern, text, re.DOTALL):
        sys.exit(f"{README} has no markers for the figures")
    block = "\n".join(["", *table(found), ""])
    README.write_text(re.sub(pattern, lambda found: found[1] + block + found[2], text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
