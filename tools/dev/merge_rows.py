"""Joins the row files of several benches into one JSON list: merge_rows.py FOLDER."""

import json
import pathlib
import sys

rows = []
for part in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    rows += json.loads(part.read_text())
json.dump(rows, sys.stdout, indent=1)
print()
