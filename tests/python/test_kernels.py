# SPDX-License-Identifier: Apache-2.0
"""What the compiler makes of kernels that share code with the host, where no GPU is needed to look at it."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = dict(os.environ)  # with the caches of whoever runs this, which tests of the program are kept from


@pytest.mark.parametrize("kernels", ["kernel", "four", "eight", "k"])
def test_no_path_of_the_persistent_step_is_a_trap(tmp_path, kernels):
    """Where a kernel wants the address of a host's constant (std::min() of it is enough), nvcc warns of nothing and writes
    a trap, which only a GPU would meet."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    if nvcc is None:
        pytest.skip("no nvcc")
    # As an object file, in which PTX is text too: those a compiler cache keeps.
    cache = [found] if (found := shutil.which("ccache")) else []
    built = tmp_path / "persistent.o"
    subprocess.run([*cache, nvcc, "-std=c++20", "-O3", "-I", ROOT / "src", "-DFMT_USE_CONSTEXPR=1", "--expt-relaxed-constexpr",
                    "-gencode", "arch=compute_90a,code=compute_90a", "--no-compress", "-c",
                    ROOT / f"src/cuda/persistent/persistent_step_{kernels}.cu", "-o", built], check=True, timeout=600,
                   env=ENVIRONMENT)  # fmt: skip
    text = built.read_bytes()
    assert b".entry" in text, "no kernel was compiled"
    assert b"trap;" not in text
