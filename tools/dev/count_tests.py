"""Adds up what every preset ran: count_tests.py FOLDER. The last line is the count; exit 1 if any failed or none ran."""

import json
import pathlib
import sys

total = {"passed": 0, "failed": 0, "skipped": 0}
for preset in sorted(p for p in pathlib.Path(sys.argv[1]).glob("*") if p.is_dir()):
    mine = {"passed": 0, "failed": 0, "skipped": 0}
    for summary in preset.glob("*.summary"):
        ran = json.loads(summary.read_text())
        for key in mine:
            mine[key] += ran[key]
    print(f"{preset.name}: {mine['passed']} passed, {mine['failed']} failed, {mine['skipped']} skipped in this preset")
    for key in total:
        total[key] += mine[key]
print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
sys.exit(1 if total["failed"] or not total["passed"] else 0)
