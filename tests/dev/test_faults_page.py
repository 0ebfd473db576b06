"""The page of faults is what the reports say."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/dev")]
import counted  # noqa: E402  (the path is set above)
import faults_page  # noqa: E402


class FaultsPage(unittest.TestCase):
    def rows_of(self, reports):
        with tempfile.TemporaryDirectory() as folder:
            for name, report in reports.items():
                (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps(report))
            return faults_page.rows(folder)

    def test_rows_that_differ_only_in_their_count_are_added_up(self):
        nested = {"testsuites": [{"testsuite": [{"name": "A", "fault_row_0": "Here|a cut|3|an error|so"},
                                                {"name": "B", "fault_row_1": "Here|a cut|4|an error|so"}]}]}
        found = self.rows_of({"a_test": nested, "b_test": {"fault_row_0": "Here|a cut|5|nothing|so"}})
        self.assertEqual({("Here", "a cut", "an error", "so"): 7, ("Here", "a cut", "nothing", "so"): 5}, found)

    def test_more_seeds_of_the_same_cases_are_left_out(self):
        row = {"fault_row_0": "Here|a cut|1|an error|so"}
        self.assertEqual({}, self.rows_of({"a_many_test": row, "a_long_test": row}))

    def test_every_row_stands_under_its_heading(self):
        page = faults_page.page({("B", "a cut", "an error", "so"): 1200, ("A", "a kill", "silence", "not so"): 1})
        self.assertIn("## B\n\n| fault | tried | promised | seen |\n|---|---|---|---|\n| a cut | 1,200 | an error | so |", page)
        self.assertLess(page.index("## A"), page.index("## B"))


if __name__ == "__main__":
    counted.main()
