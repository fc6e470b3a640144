"""tailrace beside what users would pick instead: same server, same data, same run, ratios first.

One file per scenario (`drain`, `kafka`, `latency`, `cost`, `growth`, `parts`), each runnable alone:
`python -m bench.drain --mode quick`. `python -m bench` runs all and writes the report. Contestants are processes
that take turns (`contestant`, `scenario`), what they use is read from the kernel and the servers (`accounting`), and
what was measured is one JSON document (`result`). The peers and how they are set up are in `peers/`.
"""
