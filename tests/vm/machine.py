"""The test VMs of one run: QEMU under supervision, what the command in them writes, and how it ended.

A VM never outlives this process, however that ends: QEMU is killed by the kernel when it dies, and a small process that
sleeps until all of them are gone removes the run's folder.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import image

HERE = pathlib.Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
TIMED_OUT, DIED = 124, 125  # exit statuses
GONE = -1  # in place of a status: the VM ended and left none
NOT_HANDED_ON = {"TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"}
KERNEL_ARGUMENTS = ("console=ttyS0 quiet loglevel=4 panic=-1 oops=panic net.ifnames=0 mitigations=off nokaslr audit=0 "
                    "apparmor=0 no_timer_check tsc=reliable random.trust_cpu=on rcupdate.rcu_expedited=1")


# A kernel that was kept from running while it measured its processor's clock counts several times too fast for ever, and
# every deadline in it is short.
FASTEST_CLOCK, BOOTS = 1.3, 3


class WrongClock(Exception):
    """Says which VM's."""


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def run_folder():
    """(folder, file descriptor): the folder goes when everyone who holds the descriptor is gone."""
    folder = tempfile.mkdtemp(prefix="cenote-vm-")
    reading, writing = os.pipe()
    remover = subprocess.Popen(["/bin/sh", "-c", 'read -r _; rm -rf -- "$1"', "sh", folder], stdin=reading,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(reading)
    try:
        yield pathlib.Path(folder), writing
    finally:
        os.close(writing)
        remover.wait()


class Stream:
    """One file that a VM appends to, passed on line by line if it has a prefix."""

    def __init__(self, path, target, prefix):
        path.touch()
        self.file, self.target, self.prefix, self.rest = open(path, "rb"), target, prefix, b""

    def pass_on(self, last=False):
        fresh = self.rest + self.file.read()
        self.rest = b""
        if self.prefix:
            if not last:
                end = fresh.rfind(b"\n") + 1
                fresh, self.rest = fresh[:end], fresh[end:]
            fresh = b"".join(self.prefix + line for line in fresh.splitlines(keepends=True))
        if fresh:
            self.target.write(fresh)
            self.target.flush()


class Machine:
    """One VM. `host` is its number, `wires` the sockets that lead to the other one, in the order of eth0, eth1."""

    def __init__(self, host, folder, options, wires):
        self.host, self.folder, self.options, self.wires = host, folder, options, wires
        folder.mkdir()
        self.merged = os.path.sameopenfile(1, 2) and options.hosts == 1
        prefix = f"[{host}] ".encode() if options.hosts > 1 and not options.plain else b""
        self.streams = [Stream(folder / "out", sys.stdout.buffer, prefix), Stream(folder / "err", sys.stderr.buffer, prefix)]
        self.process = None

    def write_orders(self, modules):
        options = self.options
        shutil.copy(HERE / "guest/main", self.folder / "main")
        plan = {"host": self.host, "hosts": options.hosts, "device_count": options.devices, "mtu": options.mtu,
                "merged": int(self.merged), "modules": modules}
        (self.folder / "plan").write_text("".join(f"{name}={shlex.quote(str(value))}\n" for name, value in plan.items()))
        (self.folder / "shares").write_text("".join(f"rw{i} {path}\n" for i, path in enumerate(options.rw)))
        environment = {name: value for name, value in os.environ.items() if name not in NOT_HANDED_ON}
        environment.update(entry.split("=", 1) for entry in options.env)
        # Functions that bash exported (BASH_FUNC_x%%) and the like stay behind.
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items() if name.isidentifier()]
        (self.folder / "command").write_text(
            f"cd {shlex.quote(os.getcwd())} || exit 125\n{''.join(exports)}exec {shlex.join(options.command)}\n")

    def qemu(self, kernel, initramfs):
        options = self.options
        accelerator = ["-accel", "kvm", "-cpu", "host"] if options.accel == "kvm" else \
            ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]
        command = ["qemu-system-x86_64", "-M", "q35,usb=off,vmport=off", *accelerator, "-smp", str(options.cpus),
                   "-m", str(options.mem), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                   "-serial", f"file:{self.folder}/console", "-kernel", kernel, "-initrd", initramfs,
                   "-append", KERNEL_ARGUMENTS, "-device", "virtio-rng-pci"]
        shares = [("host", "/", ",readonly=on"), ("control", self.folder, "")]
        shares += [(f"rw{i}", path, "") for i, path in enumerate(options.rw)]
        for tag, path, how in shares:
            command += ["-fsdev", f"local,id={tag},path={str(path).replace(',', ',,')},security_model=none,multidevs=remap{how}",
                        "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        for i, wire in enumerate(self.wires):
            command += ["-netdev", f"socket,id=wire{i},fd={wire.fileno()}",
                        "-device", f"virtio-net-pci,netdev=wire{i},mac=02:ce:0f:00:{self.host:02x}:{i:02x},romfile=,host_mtu=9000"]
        return [str(word) for word in command]

    def start(self, kernel, initramfs, modules, held):
        self.write_orders(modules)
        with open(self.folder / "qemu", "wb") as log:
            self.process = subprocess.Popen(self.qemu(kernel, initramfs), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True, preexec_fn=die_with_parent,
                                            pass_fds=[held, *(wire.fileno() for wire in self.wires)])

    def is_ready(self):
        return (self.folder / "ready").exists()

    def uptime(self):
        """Seconds, as the VM counted them when it was ready."""
        return float((self.folder / "ready").read_text())

    def status(self):
        """The command's exit status; GONE when the VM ended without one; None while it goes on."""
        gone = self.process.poll() is not None  # asked first: what is in the file after the end was written before it
        try:
            return int((self.folder / "status").read_text())
        except (OSError, ValueError):
            return GONE if gone else None

    def pass_on(self, last=False):
        for stream in self.streams:
            stream.pass_on(last)

    def tell(self, word):
        (self.folder / word).touch()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def last_words(self):
        """Why it may have ended, and the end of its console."""
        def lines_of(name):
            path = self.folder / name
            text = path.read_bytes().decode(errors="replace") if path.exists() else ""
            return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line) for line in text.splitlines() if line.strip()]
        console, qemu = lines_of("console"), [line for line in lines_of("qemu") if "warning:" not in line]
        telling = [i for i, line in enumerate(console) if re.search(r"cenote-vm:|Kernel panic|Out of memory|BUG:", line)]
        why = console[telling[-1]] if telling else qemu[-1] if qemu else "nothing on its console says why"
        shown = console[max(0, telling[0] - 5):][:40] if telling else console[-25:]
        return [f"VM {self.host}: {why}", *(f"  | {line}" for line in shown)]


class Supervisor:
    """Starts the VMs and stays with them to the end. run() gives the exit status."""

    def __init__(self, options):
        self.options, self.machines, self.started = options, [], time.monotonic()
        self.parent, self.said, self.went = os.getppid(), False, False
        self.failed_since = None

    def run(self):
        parts = image.ready()
        with run_folder() as (folder, held):
            for boot in range(BOOTS):
                try:
                    self.start(folder / str(boot), held, *parts)
                    return self.watch(last=boot + 1 == BOOTS)
                except WrongClock as wrong:
                    image.say(f"{wrong}; booting again")
                finally:
                    for machine in self.machines:
                        machine.kill()

    def start(self, folder, held, kernel, initramfs, modules):
        folder.mkdir()
        pairs = [socket.socketpair() for _ in range(2)] if self.options.hosts == 2 else []
        self.machines = [Machine(host, folder / str(host), self.options, [pair[host] for pair in pairs])
                         for host in range(self.options.hosts)]
        for machine in self.machines:
            machine.start(kernel, initramfs, modules, held)
        for pair in pairs:
            pair[0].close(), pair[1].close()
        self.started = time.monotonic()

    def watch(self, last):
        while True:
            statuses = [machine.status() for machine in self.machines]
            for machine in self.machines:
                machine.pass_on()
            if None not in statuses or GONE in statuses:
                break
            if os.getppid() != self.parent:
                image.say("the process that started this is gone; stopping")
                return 128 + signal.SIGTERM
            self.go_on(last)
            if time.monotonic() - self.started > self.options.timeout:
                return self.give_up(statuses, f"no result after {self.options.timeout:g} s", TIMED_OUT)
            if self.lost_patience(statuses):
                failed = next(host for host, status in enumerate(statuses) if status)
                return self.give_up(statuses, f"VM {failed} failed ({statuses[failed]}), the other one was stopped", statuses[failed])
            time.sleep(0.03)
        for machine in self.machines:
            machine.tell("stop")
        if GONE in statuses:
            return self.give_up(statuses, "a VM ended without a result", DIED)
        for machine in self.machines:
            try:
                machine.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                pass
            machine.pass_on(last=True)
        return next((status for status in statuses if status), 0)

    def lost_patience(self, statuses):
        if not any(statuses):
            return False
        self.failed_since = self.failed_since or time.monotonic()
        return time.monotonic() - self.failed_since > self.options.patience

    def give_up(self, statuses, why, status):
        for machine in self.machines:
            machine.pass_on(last=True)
        image.say(why)
        for machine, ended in zip(self.machines, statuses):
            if ended in (None, GONE):
                print("\n".join(machine.last_words()), file=sys.stderr, flush=True)
        return status

    def go_on(self, last):
        waited = time.monotonic() - self.started
        if not self.went and all(machine.is_ready() for machine in self.machines):
            for machine in self.machines:
                if machine.uptime() > FASTEST_CLOCK * waited + 1 and not last:
                    raise WrongClock(f"VM {machine.host} has counted {machine.uptime():.0f} s in {waited:.0f}")
            self.went = True
            for machine in self.machines:
                machine.tell("go")
            if self.said or self.options.verbose:
                image.say(f"booted in {waited:.1f} s")
        if not self.went and not self.said and waited > 10:
            self.said = True
            image.say(f"booting {image.RELEASE}, emulated; this machine is slow or busy")
