# SPDX-License-Identifier: Apache-2.0
"""From packages to an installed program: scripts/install_deps.sh, cmake --install, and what --version says."""

import os
import pathlib
import re
import shutil
import subprocess

import conftest
import pytest

VERSION = re.compile(r"spillway \d+\.\d+\.\d+ \(commit ([0-9a-f]{10}(\+changes)?|unknown), (CUDA \d+\.\d+\S* \(.+\)|no CUDA)(, .+)?\)\n")


def test_the_version_has_commit_and_cuda(spillway):
    assert VERSION.fullmatch(spillway.run("--version").out)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


def test_install_puts_program_and_documents_in_place(spillway, tmp_path):
    build = pathlib.Path(spillway.path).resolve().parent.parent
    if shutil.which("cmake") is None or not (build / "cmake_install.cmake").is_file():
        pytest.skip("the program does not lie in a build folder, or there is no cmake")
    done = run("cmake", "--install", build, "--prefix", tmp_path)
    assert done.returncode == 0, done.stderr
    installed = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    documents = "share/doc/spillway"
    assert {"bin/spillway", f"{documents}/README.md", f"{documents}/LICENSE", f"{documents}/docs/serving.md"} <= installed
    assert all(name == "bin/spillway" or name.startswith(documents) for name in installed), installed
    assert VERSION.fullmatch(run(tmp_path / "bin" / "spillway", "--version").stdout)


class BuildInfo:
    """cmake/build_info.cmake for a folder of its own."""

    def __init__(self, folder):
        self.source = folder / "source"
        self.source.mkdir()
        self.out = folder / "build_info.cc"

    def git(self, *arguments):
        done = run("git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments, cwd=self.source)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self):
        script = conftest.ROOT / "cmake" / "build_info.cmake"
        done = run("cmake", f"-DSOURCE={self.source}", f"-DOUT={self.out}", "-DCUDA=no CUDA", "-P", script)
        assert done.returncode == 0, done.stderr
        text = self.out.read_text()
        assert 'kBuildCuda = "no CUDA"' in text
        return re.search('kBuildCommit = "(.*)"', text).group(1)


@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("git") is None, reason="cmake or git is not installed")
def test_the_commit_is_that_of_the_sources(tmp_path):
    info = BuildInfo(tmp_path)
    assert info.commit() == "unknown"
    info.git("init", "-q")
    assert info.commit() == "unknown"  # nothing is committed
    (info.source / "file").write_text("1")
    info.git("add", "file")
    info.git("commit", "-qm", "one")
    head = info.git("rev-parse", "--short=10", "HEAD")
    assert info.commit() == head
    written = info.out.stat().st_mtime_ns
    assert info.commit() == head
    assert info.out.stat().st_mtime_ns == written, "a file that stays the same must not be written: it would be compiled again"
    (info.source / "file").write_text("2")
    assert info.commit() == f"{head}+changes"
    # Sources unpacked inside another repository have no commit.
    info.source = info.source / "unpacked"
    info.source.mkdir()
    assert info.commit() == "unknown"


class Deps:
    """Runs scripts/install_deps.sh with a fake package manager: `apt` is a shell script."""

    def __init__(self, root, installed, apt="exit 0", system="ID=debian\nVERSION_ID=12\n"):
        self.calls = root / "calls"
        self.calls.touch()
        (root / "os-release").write_text(system)
        tools = {
            "dpkg-query": "\n".join(f"echo 'installed {name}'" for name in installed),
            "apt-get": f'echo "$*" >>"{self.calls}"\n{apt}',
            "sudo": 'while [ "$1" = -n ]; do shift; done\nexec "$@"',
            "sleep": f'echo "sleep $1" >>"{self.calls}"',
        }
        folder = root / "bin"
        folder.mkdir()
        for name, body in tools.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        self.env = {"PATH": f"{folder}:{os.environ['PATH']}", "SPILLWAY_OS_RELEASE": str(root / "os-release"), "TMPDIR": str(root)}

    def run(self, *arguments):
        return run("bash", conftest.ROOT / "scripts" / "install_deps.sh", *arguments, env=self.env)

    def count(self, word):
        return sum(word in line.split() for line in self.calls.read_text().splitlines())


def package_names():
    text = (conftest.ROOT / "scripts" / "install_deps.sh").read_text()
    return re.search(r"^product_packages=\((.*?)\)", text, re.MULTILINE | re.DOTALL).group(1).split()


@pytest.mark.parametrize("boost", ["libboost-dev", "libboost1.74-dev", "libboost1.81-dev", "libboost1.83-dev", "libboost1.100-dev"])
def test_any_boost_from_1_74_on_will_do(tmp_path, boost):
    others = [name for name in package_names() if "boost" not in name]
    done = Deps(tmp_path, [*others, boost]).run()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "packages are installed" in done.stdout


def test_an_older_boost_is_missing(tmp_path):
    others = [name for name in package_names() if "boost" not in name]
    done = Deps(tmp_path, [*others, "libboost1.67-dev"]).run()
    assert done.returncode == 1
    assert "missing packages: libboost-dev" in done.stdout


def test_only_the_network_is_tried_again(tmp_path):
    broken = Deps(tmp_path, [], 'case "$*" in *-s*) exit 0 ;; esac\necho "E: Sub-process dpkg returned an error code (1)"\nexit 100')
    done = broken.run()
    assert done.returncode == 1
    assert "install_deps: E: Sub-process dpkg returned an error code (1)" in done.stderr
    assert broken.count("-y") == 1 and broken.count("sleep") == 0


def test_the_network_is_tried_again(tmp_path):
    flaky = Deps(tmp_path, [], 'case "$*" in *-s*) exit 0 ;; *update*) exit 0 ;; esac\necho "E: Failed to fetch http://x/  503  Down"\nexit 100')
    done = flaky.run()
    assert done.returncode == 1
    assert "install_deps: E: Failed to fetch" in done.stderr
    assert flaky.count("-y") == 4 and flaky.count("sleep") == 3


def test_a_package_that_no_list_has_ends_it_at_once(tmp_path):
    unknown = Deps(tmp_path, [], 'case "$*" in *install*) echo "E: Unable to locate package libhwy-dev"; exit 100 ;; esac')
    done = unknown.run()
    assert done.returncode == 1
    assert "Unable to locate package libhwy-dev; the package lists do not have all of: " in done.stderr
    assert unknown.count("update") == 1 and unknown.count("-y") == 0


@pytest.mark.parametrize(
    ("system", "line"),
    [
        ('ID=ubuntu\nVERSION_ID="22.04"\nID_LIKE=debian\n', "Ubuntu 22.04"),
        ("ID=fedora\nVERSION_ID=41\n", "sudo dnf install gcc-c++ cmake"),
        ('ID="rocky"\nVERSION_ID="9.3"\nID_LIKE="rhel centos fedora"\n', "sudo dnf install gcc-c++ cmake"),
    ],
    ids=["ubuntu 22.04", "fedora", "rocky"],
)
def test_other_systems_get_one_clear_line(tmp_path, system, line):
    deps = Deps(tmp_path, [], system=system)
    done = deps.run()
    assert done.returncode == 1 and done.stdout == ""
    assert line in done.stderr and len(done.stderr.splitlines()) == 1
    assert deps.calls.read_text() == ""


def test_ubuntu_24_04_installs_as_debian_does(tmp_path):
    done = Deps(tmp_path, package_names(), system='ID=ubuntu\nVERSION_ID="24.04"\nID_LIKE=debian\n').run()
    assert (done.returncode, done.stderr) == (0, "")


class Configure:
    """Runs scripts/configure.sh in a folder of its own, with a fake cmake that says whether it found CUDA, and a fake driver."""

    def __init__(self, root, option, found, driver):
        (root / "scripts").mkdir()
        shutil.copy(conftest.ROOT / "scripts" / "configure.sh", root / "scripts")
        cache = root / "build" / "product" / "CMakeCache.txt"
        cache.parent.mkdir(parents=True)
        cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={root}\nSPILLWAY_CUDA:STRING={option}\n")
        tools = {"cmake": f"echo '-- CUDA device: {found}'", "nvidia-smi": f"exit {0 if driver else 9}"}
        (root / "bin").mkdir()
        for name, body in tools.items():
            (root / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
            (root / "bin" / name).chmod(0o755)
        self.root = root

    def run(self):
        env = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        return run("bash", self.root / "scripts" / "configure.sh", "product", env=env)


@pytest.mark.parametrize(
    ("option", "found", "driver", "warned"),
    [("AUTO", "OFF ", True, True), ("AUTO", "OFF ", False, False), ("OFF", "OFF ", True, False), ("AUTO", "ON 90a-real", True, False)],
    ids=["a GPU without nvcc", "no GPU", "CUDA not wanted", "a GPU with nvcc"],
)
def test_a_build_for_cpus_beside_a_gpu_is_warned_about(tmp_path, option, found, driver, warned):
    done = Configure(tmp_path, option, found, driver).run()
    assert (done.returncode, done.stdout) == (0, "configured build/product\n"), done.stderr
    assert len(done.stderr.splitlines()) == (1 if warned else 0)
    assert ("no nvcc" in done.stderr) == warned
