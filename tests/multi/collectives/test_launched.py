"""Groups of real launchers: mpirun, torchrun's variables and torchrun itself, srun.

usage: test_launched.py PROGRAM. mpirun is Debian's OpenMPI. Slurm runs on this machine alone, its daemons in a folder of
the test, where they are installed and this is root; torchrun where PyTorch is (as for libraries_together).
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
import counted  # noqa: E402  (the path is set above)

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
PYTHON = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "cenote/venv/bin/python"
OTHERS = re.compile("PMIX_|SLURM_|OMPI_|TORCHELASTIC_|MASTER_|(LOCAL_)?RANK$|(LOCAL_)?WORLD_SIZE$|CENOTE_")
PLAIN = {name: value for name, value in os.environ.items() if not OTHERS.match(name)}
# libpmix and libmunge keep some of what they allocate; only a build with sanitizers looks at this.
BY_PMIX = dict(PLAIN, ASAN_OPTIONS=f"{PLAIN.get('ASAN_OPTIONS', '')}:detect_leaks=0".lstrip(":"))


class LauncherHangs(AssertionError):
    """It does not end, and no rank of ours is left that it could wait for."""


def ranks_of(launcher):
    """Processes of PROGRAM that `launcher` started."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and (stat.parent / "exe").resolve() == PROGRAM:
                found.append(stat.parent.name)
        except OSError:
            continue  # it has ended
    return found


def ran(command, environment=None, limit=40):
    """A command in a session of its own, ended with all that it started when it takes too long."""
    process = subprocess.Popen([str(word) for word in command], env=environment or PLAIN, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kind = AssertionError if ranks_of(process.pid) else LauncherHangs
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise kind(f"{command} took longer than {limit} s:\n{out}{err}") from None
    return process.returncode, out, err


class Groups(unittest.TestCase):
    def summed(self, ended, ranks, launcher, group="world"):
        """Each rank says its place and the sum; all of them on this machine."""
        code, out, err = ended
        self.assertEqual(0, code, out + err)
        lines = sorted(line for line in out.splitlines() if line.startswith(group + ":"))
        total = ranks * (ranks + 1) // 2
        self.assertEqual([f"{group}: rank {rank} of {ranks}, {rank} of {ranks} here, by {launcher}: {total}"
                          for rank in range(ranks)], lines, out + err)


@unittest.skipUnless(shutil.which("mpirun"), "openmpi-bin is not installed: ./dev setup test")
class Mpirun(Groups):
    COMMAND = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "-n"]

    def mpirun(self, ranks, *words):
        return ran([*self.COMMAND, ranks, PROGRAM, *words], BY_PMIX)

    def aborted(self, *words):
        """A job of three that does not end well. OpenMPI 4.1 itself now and then does not end then, when all
        ranks have: once more."""
        for _ in range(2):
            try:
                return self.mpirun(3, *words)
            except LauncherHangs:
                continue
        return self.mpirun(3, *words)

    def test_ranks_meet_by_pmix(self):
        self.summed(self.mpirun(4, "sum", "world"), 4, "pmix")

    def test_a_job_forms_several_groups_also_in_another_context(self):
        ended = self.mpirun(3, "sum", "world", "sum", "second", "anew", "sum", "third")
        for group in ("world", "second", "third"):
            self.summed(ended, 3, "pmix", group)

    def test_one_rank_is_a_group_too(self):
        self.summed(self.mpirun(1, "sum", "world"), 1, "pmix")

    def test_a_rank_that_never_comes_is_named(self):
        for absent in (0, 2):
            with self.subTest(rank=absent):
                code, out, err = self.aborted("absent", absent, "wait", 3000, "sum", "world")
                self.assertNotEqual(0, code)
                self.assertRegex(err, rf"(deadline exceeded|peer failed): .*rank {absent} of 3 has not arrived", out)

    def test_a_rank_that_ends_ends_the_job_and_nothing_hangs(self):
        for leaves in (0, 1):
            code, out, err = self.aborted("leave", leaves, "sum", "world")
            self.assertEqual(7, code, out + err)

    def test_two_jobs_at_once_do_not_meet(self):
        command = [*self.COMMAND, "3", str(PROGRAM), "sum", "world"]
        jobs = [subprocess.Popen(command, env=BY_PMIX, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True) for _ in range(2)]
        for job in jobs:
            out, err = job.communicate(timeout=60)
            self.summed((job.returncode, out, err), 3, "pmix")


class Variables(Groups):
    """What torchrun sets, without it."""

    def environments(self, ranks, port=29500, **more):
        return [dict(PLAIN, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                     MASTER_ADDR=socket.gethostname(), MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="none",
                     TORCHELASTIC_RESTART_COUNT="0", **more) for rank in range(ranks)]

    def started(self, environments, *words):
        return [subprocess.Popen([str(PROGRAM), *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True) for environment in environments]

    def all_of(self, processes):
        said = [process.communicate(timeout=60) for process in processes]
        return (max(abs(process.returncode) for process in processes), "".join(out for out, _ in said),
                "".join(err for _, err in said))

    def test_ranks_meet(self):
        self.summed(self.all_of(self.started(self.environments(4), "sum", "world")), 4, "torchrun")

    def test_the_port_of_pytorchs_store_is_left_alone(self):
        with socket.create_server(("", 0)) as store:
            environments = self.environments(2, store.getsockname()[1])
            self.summed(self.all_of(self.started(environments, "sum", "world")), 2, "torchrun")

    def test_jobs_at_once_do_not_meet(self):
        jobs = [self.started(self.environments(3, port), "sum", "world") for port in range(29500, 29504)]
        for job in jobs:
            self.summed(self.all_of(job), 3, "torchrun")

    def test_a_group_of_the_same_name_after_another(self):
        ended = self.all_of(self.started(self.environments(3), "sum", "world", "sum", "world", "anew", "sum", "world"))
        self.assertEqual(0, ended[0], ended)
        self.assertEqual(9, ended[1].count("world: "))

    def test_a_rank_that_never_comes_is_named(self):
        for absent, name in ((2, "rank 2 of 3 has not arrived"), (0, "rank 0 has not arrived")):
            there = [rank for i, rank in enumerate(self.environments(3)) if i != absent]
            code, _, err = self.all_of(self.started(there, "wait", "1500", "sum", "world"))
            self.assertEqual(1, code)
            # The deadline of rank 0 may pass first; it then tells the others.
            self.assertEqual(2, len(re.findall(f"(?:deadline exceeded|peer failed): .*{name}", err)), err)

    def test_settings_choose(self):
        environment = self.environments(2)[1]
        code, out, _ = ran([PROGRAM, "find"], dict(environment, CENOTE_LAUNCHER="none"))
        self.assertEqual((0, "rank 0 of 1 by none\n"), (code, out))
        code, _, err = ran([PROGRAM, "find"], dict(environment, CENOTE_LAUNCHER="slurm"))
        self.assertEqual(1, code)
        self.assertIn("SLURM_STEP_NUM_TASKS is not set", err)
        code, _, err = ran([PROGRAM, "find"], dict(environment, CENOTE_LAUNCHER="mpi"))
        self.assertEqual(1, code)
        self.assertIn("CENOTE_LAUNCHER: launcher: 'mpi' is not one of auto, pmix, slurm, torchrun, none", err)
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = str(chosen.getsockname()[1])
        ended = self.all_of(self.started(self.environments(2, CENOTE_LAUNCHER_PORT=port), "sum", "world"))
        self.summed(ended, 2, "torchrun")

    def test_without_a_launcher_or_with_half_of_one_it_says_so(self):
        code, _, err = ran([PROGRAM, "sum", "world"])
        self.assertEqual(1, code)
        self.assertRegex(err, "not found: .*PMIX_NAMESPACE.*SLURM_STEP_ID.*RANK")
        code, _, err = ran([PROGRAM, "sum", "world"], dict(PLAIN, RANK="0", WORLD_SIZE="2"))
        self.assertEqual(1, code)
        self.assertIn("MASTER_ADDR is not set", err)
        code, _, err = ran([PROGRAM, "find"], dict(PLAIN, PMIX_NAMESPACE="gone", PMIX_RANK="0"))
        self.assertEqual(1, code)
        self.assertIn("PMIx", err)
        code, _, err = ran([PROGRAM, "find"], dict(PLAIN, PMIX_NAMESPACE="gone", PMIX_RANK="0", RANK="7", WORLD_SIZE="8"))
        self.assertEqual(1, code)
        self.assertIn("RANK is '7', and PMIX_RANK is '0'", err)


@unittest.skipUnless(PYTHON.exists(), "PyTorch is not installed: ./dev setup python")
class Torchrun(Groups):
    def test_ranks_meet(self):
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "3"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for how in (["--standalone"], ["--master-port", port]):
            with tempfile.TemporaryDirectory() as folder:  # it leaves its logs' folder behind
                ended = ran([*torchrun, *how, PROGRAM, "sum", "world"], dict(PLAIN, TMPDIR=folder), 120)
            self.summed(ended, 3, "torchrun")


SLURM = ("slurmctld", "slurmd", "srun", "munged")
SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
PartitionName=all Nodes=localhost Default=YES State=UP
"""


@unittest.skipUnless(all(map(shutil.which, SLURM)), "Slurm is not installed: slurmctld, slurmd, slurm-client and munge")
@unittest.skipUnless(os.geteuid() == 0, "slurmd wants to be root")
class Srun(Groups):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="cenote-slurm-", dir="/tmp"))
        cls.daemons = []
        cls.addClassCleanup(cls.stop)
        for name in ("state", "spool"):
            (cls.folder / name).mkdir()
        (cls.folder / "key").write_bytes(os.urandom(128))
        (cls.folder / "key").chmod(0o400)
        cls.folder.chmod(0o755)
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [listener.getsockname()[1] for listener in listeners]
        for listener in listeners:
            listener.close()
        conf = cls.folder / "slurm.conf"
        conf.write_text(SLURM_CONF.format(host=socket.gethostname().split(".")[0], folder=cls.folder, ports=ports))
        cls.environment = dict(BY_PMIX, SLURM_CONF=str(conf))
        cls.start("munged", "--foreground", "--force", f"--socket={cls.folder}/munge", f"--key-file={cls.folder}/key",
                  f"--pid-file={cls.folder}/munged.pid", f"--log-file={cls.folder}/munged.log",
                  f"--seed-file={cls.folder}/seed")
        cls.until(lambda: (cls.folder / "munge").exists())
        cls.start("slurmctld", "-D", "-f", conf)
        cls.start("slurmd", "-D", "-f", conf, "-N", "localhost")
        cls.until(lambda: "idle" in ran(["sinfo", "-h", "-o", "%T"], cls.environment)[1])

    @classmethod
    def start(cls, *command):
        with open(cls.folder / f"{command[0]}.out", "wb") as log:
            cls.daemons.append(subprocess.Popen([str(word) for word in command], env=getattr(cls, "environment", PLAIN),
                                                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    @classmethod
    def until(cls, there):
        deadline = time.monotonic() + 30
        while not there():
            if time.monotonic() > deadline:
                logs = "".join(file.read_text(errors="replace")[-2000:] for file in cls.folder.glob("*.out"))
                raise AssertionError("Slurm does not come up:\n" + logs)
            time.sleep(0.1)

    @classmethod
    def stop(cls):
        for daemon in reversed(cls.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(cls.folder)

    def srun(self, *words):
        return ran(["srun", *words], self.environment)

    def test_ranks_meet_by_what_srun_says(self):
        self.summed(self.srun("--mpi=none", "-n3", PROGRAM, "sum", "world", "sum", "second"), 3, "slurm")

    def test_ranks_meet_by_slurms_pmix(self):
        if "pmix" not in self.srun("--mpi=list")[1]:
            self.skipTest("this Slurm has no PMIx")
        self.summed(self.srun("--mpi=pmix", "-n3", PROGRAM, "sum", "world"), 3, "pmix")

    def test_a_rank_that_never_comes_is_named(self):
        code, _, err = self.srun("--mpi=none", "--kill-on-bad-exit=1", "-n3", PROGRAM, "absent", "1", "wait", "1500", "sum", "world")
        self.assertNotEqual(0, code)
        self.assertRegex(err, "(deadline exceeded|peer failed): .*rank 1 of 3 has not arrived")


if __name__ == "__main__":
    counted.main()
