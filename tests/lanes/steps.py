# SPDX-License-Identifier: GPL-3.0-or-later
"""What lanes are made of: a clean copy of the tree, commands whose results are counted, virtual environments, older interpreters."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".build" / "lanes"
HOME = BUILD / "home"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

# A file of tests at a time on each core.
SPREAD = ("-n", str(os.cpu_count() or 1), "--dist", "loadfile")

# Settings of ansible-test, wherever the rest of tests/ is left out.
ALWAYS_COPIED = ("tests/config.yml",)

# get-pip as ansible-test would download it, by release: core 2.21, 2.18 and 2.19, 2.16 and 2.17, and 2.16 for Python 3.6.
PIP_BOOTSTRAPS = ("get_pip_25_2.py", "get_pip_24_2.py", "get_pip_23_1_2.py", "get_pip_21_3_1.py")


# pytest.mark.long: what a run of CI can do without, because a shorter test looks at the same thing.
LONG = "long: only in the long form (make test-all)"


class StepFailed(Exception):
    """A step that ended badly; its output has been shown."""


def environment(**more):
    """The caller's environment with our own home, so that no tool reads or writes what belongs to the user.

    Byte code is kept, in a folder of ours: a lane starts thousands of Pythons, and each would compile all that it imports.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MOLECULE_", "PYTEST_", "GIT_"))}
    HOME.mkdir(parents=True, exist_ok=True)
    kept.update(
        HOME=str(HOME), XDG_CACHE_HOME=str(HOME / ".cache"), PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        LC_ALL="C.UTF-8", PYTHONPYCACHEPREFIX=str(BUILD / "pycache"), ANSIBLE_HOME=str(HOME / ".ansible"))
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        kept.pop(name, None)
    return {**kept, **{name: str(value) for name, value in more.items()}}


def listed_files():
    """Tracked and new files, as git sees them; without git, everything that is not hidden away by name."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode == 0:
        return [name for name in sorted(set(done.stdout.decode().split("\0"))) if name and os.path.lexists(ROOT / name)]
    hidden = {".git", ".build", ".venv", ".cache", ".ansible", "__pycache__"}
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
                  if (path.is_file() or path.is_symlink()) and not hidden & set(path.relative_to(ROOT).parts))


def clean_copy(name, without=()):
    """Bring BUILD/NAME/ansible_collections/npu/fleet to exactly the listed files, less some folders; returns that folder.

    ansible-test refuses a link to the clone, and linters would walk what other lanes built.
    """
    target = BUILD / name / "ansible_collections" / "npu" / "fleet"
    wanted = {file for file in listed_files() if not file.startswith(tuple(without)) or file in ALWAYS_COPIED}
    target.mkdir(parents=True, exist_ok=True)
    # Tools ask git for the files of a project, and the clone's git ignores .build: without a repository of its own the copy looks empty.
    if shutil.which("git") and not (target / ".git").exists():
        subprocess.run(["git", "init", "--quiet", target], check=True, env=environment())
    for path in sorted(target.rglob("*"), reverse=True):
        if path.relative_to(target).parts[0] == ".git":
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(target)) not in wanted:
            path.unlink()
    for file in wanted:
        source, copy = ROOT / file, target / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(copy):
            copy.unlink()
        shutil.copy2(source, copy, follow_symlinks=False)
    return target


def linked_tree():
    """Return a folder to import ansible_collections.npu.fleet from, without a copy."""
    link = BUILD / "linked" / "ansible_collections" / "npu" / "fleet"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(ROOT)
    return BUILD / "linked"


def run(command, cwd=ROOT, env=None, look=None, quiet=False):
    """Run a command, show its output as it comes, give each line to look(line). Raises StepFailed unless it ends with 0."""
    print("$ " + " ".join(str(word) for word in command), flush=True)
    lines, start = [], time.monotonic()
    process = subprocess.Popen([str(word) for word in command], cwd=cwd, env=env or environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    with process.stdout:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if not quiet:
                print(line, end="", flush=True)
            if look:
                look(lines[-1])
    ended = process.wait()
    print(f"({time.monotonic() - start:.0f} s)", flush=True)
    if ended:
        if quiet:
            print("\n".join(lines), flush=True)
        raise StepFailed(f"{Path(str(command[0])).name} ended with {ended}")


class Count:
    """Numbers of a lane: what passed, what failed, what could not be run here, its time and that of its commands on a processor.

    cpu: seconds; those of a node's own processes are not among them, because its init is nobody's child.
    """

    def __init__(self, long=False):
        self.long = long
        self.passed = 0
        self.failed = 0
        self.not_run = []
        self.seconds = self.cpu = 0.0

    def step(self, words, command, **how):
        """Run one command that counts as one check; the next ones run even if it fails."""
        try:
            run(command, **how)
        except StepFailed as error:
            self.fail(f"{words}: {error}")
        else:
            self.passed += 1

    def fail(self, words):
        print(f"FAILED {words}", flush=True)
        self.failed += 1

    def check(self, good, words):
        """Count a finding of our own."""
        if good:
            self.passed += 1
        else:
            self.fail(words)

    def pytest(self, arguments, python=sys.executable, **how):
        """Run pytest and count its tests."""
        numbers = {}

        def look(line):
            if re.search(r"\b(passed|failed|errors?|skipped|no tests ran)\b.* in [0-9.]+s", line):
                numbers.update({word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", line)})

        # A short folder: paths of Unix sockets end at 107 bytes, and some tests make theirs deep in it.
        with tempfile.TemporaryDirectory(prefix="t") as folder:
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/p", "-o", f"markers={LONG}"]
            command += [*([] if self.long else ["-m", "not long"]), *arguments]
            try:
                run(command, look=look, **how)
            except StepFailed as error:
                if not numbers.get("failed", 0) + numbers.get("error", 0):
                    self.fail(f"pytest: {error}")
            # Byte code of what the tests wrote: nothing will have these paths again.
            shutil.rmtree(f"{BUILD}/pycache{folder}", ignore_errors=True)
        self.passed += numbers.get("passed", 0)
        self.failed += numbers.get("failed", 0) + numbers.get("error", 0)
        if numbers.get("skipped"):
            self.not_run.append(f"{numbers['skipped']} tests skipped")
        if numbers.get("deselected"):
            self.not_run.append(f"{numbers['deselected']} tests left to make test-all")

    def sanity(self, command, **how):
        """Run `ansible-test sanity` and count its tests by name."""
        tests, failed = set(), []

        def look(line):
            started = re.match(r'Running sanity test "([^"]+)"', line)
            if started:
                tests.add(started.group(1))
            ended = re.match(r"(?:FATAL|ERROR): The (\d+) sanity test\(s\) listed below", line)
            if ended:
                failed.append(int(ended.group(1)))

        try:
            run(command, look=look, **how)
        except StepFailed as error:
            if not failed:
                self.fail(f"ansible-test: {error}")
        self.failed += sum(failed)
        self.passed += max(len(tests) - sum(failed), 0)
        if not tests:
            self.fail("ansible-test ran no test at all")


def virtual_environment(name, python, requirements):
    """Make BUILD/venv/NAME once; made anew when the requirements change or it is broken. Returns its python.

    requirements are groups that are installed one after the other.
    """
    folder = BUILD / "venv" / name
    mark, wanted = folder / "requirements", f"{python} {requirements}"
    inside = folder / "bin" / "python"
    fresh = mark.exists() and mark.read_text() == wanted
    if not fresh or subprocess.run([inside, "-c", ""], check=False, capture_output=True).returncode:
        shutil.rmtree(folder, ignore_errors=True)
        run([python, "-m", "venv", folder])
        for group in requirements:
            run([inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *group])
        mark.write_text(wanted)
    return inside


def _works(path, version):
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", question], check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def interpreter(version):
    """Return a working python of this version: this one, of the PATH, of /usr/local, or of pyenv where there is one. None otherwise."""
    if version == PYTHON:
        return Path(sys.executable)
    name = f"python{version}"
    places = [Path(folder) / name for folder in os.environ["PATH"].split(os.pathsep) if folder] + [Path("/usr/local/bin") / name]
    roots = [os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv"]
    pyenv = shutil.which("pyenv")
    if pyenv:
        roots.insert(0, subprocess.run([pyenv, "root"], check=False, capture_output=True, text=True).stdout.strip())
    for root in filter(None, roots):
        places += sorted(Path(root).glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    return next((path for path in places if path.exists() and _works(path, version)), None)


def bootstrap_pip():
    """Put our own script where ansible-test keeps its downloaded get-pip. The rest of what it needs comes from PyPI."""
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for name in PIP_BOOTSTRAPS:
        shutil.copy(Path(__file__).with_name("pip_bootstrap.py"), cache / name)
