"""What the test VM boots: Debian's kernel, one exact version for everybody, unpacked into a cache and never installed,
and an initramfs with the modules that lead to the host's file tree and to Soft-RoCE."""

import fcntl
import glob
import gzip
import hashlib
import lzma
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time

# The last kernel of Debian 12's own point releases; security updates replace each other, this one stays.
RELEASE = "6.1.0-50-amd64"
PACKAGE, VERSION = f"linux-image-{RELEASE}", "6.1.176-1"
DEB = f"{PACKAGE}_{VERSION}_amd64.deb"
SHA256 = "7b5597492a0a65aee61985a492e6bcc3f2cde830072a0e3b3d8c7e1b90279bd3"

# In the initramfs; all others are loaded with modprobe from the unpacked package.
MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net", "veth", "bridge", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
# program or file -> its package in tools/packages.txt, group vm
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "depmod": "kmod", "modprobe": "kmod",
         "rdma": "iproute2", "tc": "iproute2"}
PROVIDER = ("/usr/lib/*/libibverbs/librxe-rdmav*.so", "ibverbs-providers")
HERE = pathlib.Path(__file__).resolve().parent
os.environ["PATH"] += ":/usr/sbin:/sbin"  # where an ordinary user's PATH does not look


class Unavailable(Exception):
    """This machine cannot have the VM: the reason, then what to do."""


def say(text):
    print(f"cenote-vm: {text}", file=sys.stderr, flush=True)


def cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "cenote/vm"


def check_tools():
    if os.uname().machine != "x86_64":
        raise Unavailable(f"the VM's kernel is for x86_64 and this machine is {os.uname().machine}; run on an x86_64 machine")
    missing = {package for tool, package in TOOLS.items() if not shutil.which(tool)}
    if not glob.glob(PROVIDER[0]):
        missing.add(PROVIDER[1])
    if missing:
        raise Unavailable(f"missing here: {', '.join(sorted(missing))}; install them with ./dev setup vm")


def run_quietly(command, folder=None):
    """None, or the last line of what a failing command said."""
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")
    if not done.returncode:
        return None
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines[-1].removeprefix("E: ") if lines else f"{command[0]} ended with {done.returncode}"


def fetch(folder):
    """The package as apt finds it; if the machine's package lists do not know it, with lists of our own."""
    if not shutil.which("apt-get"):
        raise Unavailable(f"no apt-get here to fetch {PACKAGE} with; put {DEB} into {cache_folder()}")
    apt = ["apt-get", "-q"] + (["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else [])
    wanted = ["download", f"{PACKAGE}={VERSION}"]
    problem = run_quietly(apt + wanted, folder)
    if problem:
        lists = pathlib.Path(folder, "apt")
        (lists / "lists/partial").mkdir(parents=True)
        (lists / "archives/partial").mkdir(parents=True)
        apt += ["-o", f"Dir::State::Lists={lists}/lists", "-o", f"Dir::Cache={lists}"]
        problem = run_quietly(apt + ["update"], folder) or run_quietly(apt + wanted, folder)
    if problem or not pathlib.Path(folder, DEB).exists():
        raise Unavailable(f"{PACKAGE} {VERSION} cannot be fetched ({problem or 'apt-get left no ' + DEB}); "
                          f"see to the network and apt's sources, or put {DEB} into {cache_folder()}")
    return pathlib.Path(folder, DEB)


def kernel_elf(image):
    """The kernel inside its self-extracting image: an emulated processor need not unpack it again at every boot."""
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    packed = image[start:start + length]
    if packed[:4] == b"\xfd7zX":
        kernel = lzma.LZMADecompressor().decompress(packed)
    elif packed[:2] == b"\x1f\x8b":
        kernel = gzip.decompress(packed[:-4])  # the last four bytes are its size, not gzip's
    else:
        kernel = b""
    if kernel[:4] != b"\x7fELF":
        raise RuntimeError(f"the kernel image of {DEB} is packed in a way that image.py does not know")
    return kernel


def unpack_kernel(cache):
    """cache/RELEASE with lib/modules and vmlinux, complete or not there at all."""
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=cache) as folder:
        deb = cache / DEB
        if not deb.exists():
            say(f"fetching {PACKAGE} {VERSION} (70 MB, once)")
            deb = fetch(folder)
        found = hashlib.sha256(deb.read_bytes()).hexdigest()
        if found != SHA256:
            raise RuntimeError(f"{deb} is not the package that everybody tests with: sha256 {found}, expected {SHA256}; "
                               "delete it and try again")
        say(f"unpacking it into {cache} (0.4 GB, once)")
        tree = pathlib.Path(folder, "tree")
        problem = run_quietly(["dpkg-deb", "-x", str(deb), str(tree)]) or run_quietly(["depmod", "-b", str(tree), RELEASE])
        if problem:
            raise RuntimeError(f"unpacking {deb} failed: {problem}")
        (tree / "vmlinux").write_bytes(kernel_elf((tree / f"boot/vmlinuz-{RELEASE}").read_bytes()))
        shutil.rmtree(tree / "boot")
        shutil.rmtree(tree / "usr")
        tree.rename(cache / RELEASE)


def module_files(tree):
    """MODULES with what they need, in the order of loading."""
    files = []
    for module in MODULES:
        shown = subprocess.run(["modprobe", "-d", tree, "-S", RELEASE, "--show-depends", module], capture_output=True, text=True)
        if shown.returncode:
            raise RuntimeError(f"the kernel {RELEASE} has no module {module}: {shown.stderr.strip()}")
        for line in shown.stdout.splitlines():
            words = line.split()
            if words[0] == "insmod" and words[1] not in files:
                files.append(words[1])
    return files


def cpio(entries):
    """An archive in the format of initramfs ("newc"). entries: (name, mode, content)."""
    archive = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        archive += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        archive += b"\0" * (-len(archive) % 4)
        archive += content
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def build_initramfs(tree, target):
    folders = [(name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "proc", "dev", "host", "scratch", "tree", "modules")]
    modules = module_files(tree)
    order = "".join(pathlib.Path(file).name + "\n" for file in modules)
    files = [("init", HERE.joinpath("guest/init").read_bytes()), ("bin/busybox", pathlib.Path(shutil.which("busybox")).read_bytes()),
             ("modules/order", order.encode())]
    files += [(f"modules/{pathlib.Path(file).name}", pathlib.Path(file).read_bytes()) for file in modules]
    fresh = target.with_suffix(".new")
    fresh.write_bytes(cpio(folders + [(name, stat.S_IFREG | 0o755, content) for name, content in files]))
    fresh.rename(target)
    for old in target.parent.glob("initramfs-*"):  # of another state of this tree, or of another tree: made again in a second
        if old.stat().st_mtime < time.time() - 86400:
            old.unlink(missing_ok=True)


def initramfs_name():
    """Another one for other contents, so that two trees can use one cache."""
    busybox = os.stat(shutil.which("busybox"))
    of = repr((MODULES, busybox.st_size, busybox.st_mtime_ns)).encode() + HERE.joinpath("guest/init").read_bytes()
    return f"initramfs-{hashlib.sha256(of).hexdigest()[:16]}"


def ready():
    """(kernel, initramfs, folder of modules); made if they are not there yet. Raises Unavailable, or what went wrong."""
    check_tools()
    cache = cache_folder()
    tree = cache / RELEASE
    initramfs = tree / initramfs_name()
    if not initramfs.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            lock = open(cache / "lock", "w")
        except OSError as problem:
            raise Unavailable(f"the cache {cache} cannot be written: {problem.strerror}; "
                              "set XDG_CACHE_HOME to a folder of yours") from problem
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in cache.glob("unpacking-*"):  # whoever had the lock before was killed
                shutil.rmtree(left)
            if not tree.exists():
                unpack_kernel(cache)
            if not initramfs.exists():
                build_initramfs(tree, initramfs)
    return tree / "vmlinux", initramfs, tree / "lib/modules"
