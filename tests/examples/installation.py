"""An installed copy of the build, and programs made out of the tree with nothing but it."""

import os
import pathlib
import shutil
import subprocess
import tempfile

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
LANGUAGES = {".c": ["gcc", "-std=c11"], ".cpp": ["g++", "-std=c++20"]}


def ran(command, **options):
    """What a command printed; one that fails is an error with all of it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


class Installation:
    """`prefix` is not where it was installed: what is in it has to find its parts from where it stands."""

    def __init__(self, build):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cenote-installed-"))
        ran(["cmake", "--install", build, "--prefix", self.folder / "before"])
        self.prefix = self.folder / "prefix"
        (self.folder / "before").rename(self.prefix)
        self.sources = self.folder / "examples"
        shutil.copytree(self.prefix / "share/doc/cenote/examples", self.sources)
        self.cenote = self.prefix / "bin/cenote"

    def remove(self):
        shutil.rmtree(self.folder)

    def built_by_cmake(self):
        """The folder of all examples."""
        made = self.folder / "by-cmake"
        flags = " ".join(WARNINGS)
        ran(["cmake", "-G", "Ninja", "-S", self.sources, "-B", made, f"-DCMAKE_PREFIX_PATH={self.prefix}",
             f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"])
        ran(["cmake", "--build", made, "-j2"])
        return made

    def built_by_pkg_config(self, source, module, standard=None):
        """The program of one example, as a line in a Makefile would build it."""
        libraries = next(self.prefix.glob("lib/**/pkgconfig")).parent
        environment = dict(os.environ, PKG_CONFIG_PATH=str(libraries / "pkgconfig"))
        flags = ran(["pkg-config", "--cflags", "--libs", module], env=environment).split()
        compiler = list(LANGUAGES[pathlib.Path(source).suffix])
        if standard:
            compiler[1] = f"-std={standard}"
        made = self.folder / (pathlib.Path(source).name.replace(".", "-") + "-by-pkg-config")
        ran([*compiler, *WARNINGS, self.sources / source, "-o", made, *flags, f"-Wl,-rpath,{libraries}"])
        return made
