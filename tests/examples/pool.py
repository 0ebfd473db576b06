"""A pool on this machine, by an installed `cenote`: a broker, and an agent with one emulated GPU."""

import os
import signal
import subprocess


class Pool:
    def __init__(self, cenote, folder):
        folder.mkdir()
        self.cenote, self.folder, self.processes = cenote, folder, []
        # The pool's settings are its own, whatever the environment says of another.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CENOTE_")}
        self.config = folder / "cenote.toml"
        try:
            subprocess.run([cenote, "--set", f"tls.dir={folder / 'tls'}", "broker", "--init-tls", "--agent", "here"],
                           check=True, env=self.environment, stdout=subprocess.DEVNULL, timeout=60)
            self.write("127.0.0.1:0")
            self.write(self.start("broker"))
            self.start("agent", "--name", "here", "--set", "agent.devices=emulated:H200:64MiB")
        except BaseException:
            self.stop()
            raise

    def write(self, broker):
        self.config.write_text(f'[tls]\ndir = "{self.folder / "tls"}"\n[broker]\nstate_dir = "{self.folder / "state"}"\n'
                               f'listen = "{broker}"\naddress = "{broker}"\n')

    def start(self, command, *arguments):
        """Starts one of the long-running commands; returns the endpoint that it says it listens on."""
        reader, writer = os.pipe()
        log = open(self.folder / f"{command}.log", "wb")
        line = [self.cenote, "--die-with", str(os.getpid()), "--config", self.config, command, "--ready-fd", str(writer),
                *arguments]
        self.processes.append(subprocess.Popen(line, pass_fds=[writer], env=self.environment, stdout=log,
                                               stderr=subprocess.STDOUT, start_new_session=True))
        os.close(writer)
        log.close()
        with os.fdopen(reader) as ready:
            endpoint = ready.read().strip()
        if not endpoint:
            raise AssertionError(f"cenote {command} did not come up:\n{(self.folder / f'{command}.log').read_text()}")
        return endpoint

    def listed(self):
        """What `cenote leases` prints."""
        return subprocess.run([self.cenote, "--config", self.config, "leases"], check=True, env=self.environment,
                              capture_output=True, text=True, timeout=60).stdout

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
