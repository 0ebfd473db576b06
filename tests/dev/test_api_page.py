"""docs/api-reference.md is what the headers say, and they say something of every function."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/dev")]
import api_page  # noqa: E402  (the path is set above)
import counted  # noqa: E402


class ApiPage(unittest.TestCase):
    def test_is_that_of_the_headers(self):
        self.assertEqual(api_page.page(), (ROOT / "docs/api-reference.md").read_text(),
                         "the headers changed: python3 tools/dev/api_page.py > docs/api-reference.md")

    def test_no_function_is_left_out_and_each_has_words_of_its_own(self):
        found = 0
        for header in api_page.HEADERS:
            text = (ROOT / "include/cenote" / header).read_text()
            shown = [(comment, code) for comment, code in api_page.pieces(text) if code.startswith("CENOTE_API")]
            self.assertEqual(len(re.findall(r"^CENOTE_API ", text, re.M)), len(shown), header)
            for comment, code in shown:
                self.assertTrue(comment and comment.startswith("/**"), f"{header}: no words of its own: {code}")
            found += len(shown)
        self.assertGreater(found, 40)

    def test_no_type_is_left_out(self):
        for header in api_page.HEADERS:
            text = (ROOT / "include/cenote" / header).read_text()
            shown = [code for _, code in api_page.pieces(text) if code.startswith("typedef")]
            self.assertEqual(len(re.findall(r"^typedef ", text, re.M)), len(shown), header)


if __name__ == "__main__":
    counted.main()
