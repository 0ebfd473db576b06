"""docs/performance.md from the rows that `./dev bench --json FILE` wrote: performance_page.py FILE > docs/performance.md."""

import json
import sys

HEAD = """# What was measured

Rows as `./dev bench --json FILE` writes them, on a shared virtual machine with two cores; `tools/dev/performance_page.py`
makes this page of them. Absolute figures do not travel, so read the ratios: each is measured against a peer, or against
the machine's own limit, in the same run, in as many alternating pairs as the row says, and carries its 95 % interval;
where that is wide, the row says nothing yet. Above 1 is better than what it is compared with. `bar` is the least ratio
that the project demands of itself.

| what | ours | against | theirs | ratio | 95 % | pairs | bar | met |
|---|---|---|---|---|---|---|---|---|"""

FOOT = """
How to read the rows:

- **put latency**: one process puts 8 bytes and a signal into the other's memory and waits for the same back; half the
  round trip. `ucx_perftest -t ucp_put_lat` of Debian's UCX 1.13.1 does the same, pinned to the same two cores.
- **put bandwidth**: puts of 1 MiB, several in flight, until the last one has arrived.
- **tcp bandwidth**: `ucx_perftest` stays near 0.6 GB/s here, on a quiet machine too, far below what UCX is known to reach
  over loopback. That row says little; the one against plain blocking sockets is the honest one.
- **verbs**: `cenote perf` beside Debian's perftest 4.5, in the test VM: two Soft-RoCE devices on an emulated processor, so the
  figures are of that processor and of the kernel's software card, not of a network. `ib_write_bw itself` is perftest
  against perftest in the same rounds: the noise, whose lower end is the bar of the rows below it. `put+signal` carries
  a signal that `ib_write_lat` does not have, and stands beside `ib_send_lat`, which takes a buffer and a completion too.
- **8 B latency over verbs** lies at the edge of what the machine can tell: in four runs of one day reads came to 0.97 to 1.00
  of perftest (bars of 0.94 to 0.98, met in each), sends to 0.94 to 0.99 (bars of 0.91 to 0.98, met in three of the four). The
  processor is emulated, so an instruction costs about 3 ns there; a message costs more of them than perftest's, for it is copied
  into a block and out of an inbox.
- **two rails**: two devices that `tbf` has made unequal (48 and 16 Mbit/s), together and each alone.
- **8 B write, completed**: instructions that callgrind counts for one write over verbs and its completion, over a libibverbs
  under which everything is done at once (`perf/at_once`), which is left out; `ib_write_bw -N -I 8` beside our loop. They
  do not depend on the machine. The bar is perftest's count plus 20 %.
- **ucx**: what our contract costs over UCX. "our settings": bare UCX set as the transport sets it: it sends from buffers of
  its own, because UCX as it comes aborts the process when a TCP connection is lost with a message under way from the
  caller's memory; and these are larger than its own choice, which makes bare UCX faster over shared memory, too.
- **null launches**: 10^6 launches of an empty kernel on a leased, emulated GPU in another process, sent over shared
  memory, until the last one has run; the bar of 2 us a launch stands as the thing it is compared with."""


def figure(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def line(row):
    low, high = row["spread"]
    bar = "" if row["bar"] is None else figure(row["bar"])
    met = "" if row["bar"] is None else ("yes" if row["met"] else "**no**")
    return (f"| {row['name']} | {figure(row['value'])} {row['unit']} | {row['against']} | {figure(row['against_value'])} "
            f"{row['unit']} | {row['ratio']:.2f} | {low:.2f} to {high:.2f} | {row['pairs']} | {bar} | {met} |")


with open(sys.argv[1]) as rows:
    print(HEAD)
    print("\n".join(line(row) for row in json.load(rows)))
    print(FOOT)
