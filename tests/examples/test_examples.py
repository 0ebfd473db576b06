"""The examples do what their first comment says: test_examples.py FOLDER."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import counted  # noqa: E402  (the path is set above)

EXAMPLES = pathlib.Path(sys.argv.pop(1))


class Allreduce(unittest.TestCase):
    def test_ranks_that_are_processes_sum_what_they_hold(self):
        ranks = 3
        root = subprocess.Popen([EXAMPLES / "allreduce", "0", str(ranks)], stdout=subprocess.PIPE, text=True)
        name = root.stdout.readline().strip()
        others = [subprocess.Popen([EXAMPLES / "allreduce", str(rank), str(ranks), name], stdout=subprocess.PIPE, text=True)
                  for rank in range(1, ranks)]
        said = [process.communicate(timeout=60)[0] for process in [root, *others]]
        self.assertEqual([0] * ranks, [process.returncode for process in [root, *others]])
        for rank, text in enumerate(said):
            self.assertIn(f"rank {rank}: 3 6 9 3", text)

    def test_without_arguments_it_says_what_it_wants(self):
        ran = subprocess.run([EXAMPLES / "allreduce"], capture_output=True, text=True, timeout=60)
        self.assertEqual(2, ran.returncode)
        self.assertIn("usage:", ran.stderr)

    def test_a_wrong_id_is_an_error_in_words(self):
        ran = subprocess.run([EXAMPLES / "allreduce", "1", "2", "nonsense"], capture_output=True, text=True, timeout=60)
        self.assertEqual(1, ran.returncode)
        self.assertIn("read unique id failed", ran.stderr)


if __name__ == "__main__":
    counted.main()
