"""unittest with the closing line that the test runner reads: N passed, N failed, N skipped."""

import sys
import unittest


def main():
    result = unittest.main(exit=False, verbosity=2).result
    bad = len(result.failures) + len(result.errors)
    # What fails before its first test has run none.
    print(f"{max(0, result.testsRun - bad - len(result.skipped))} passed, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad else 0)
