# SPDX-License-Identifier: Apache-2.0
"""What the compiler makes of kernels that share code with the host, where no GPU is needed to look at it."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kernels", ["kernel", "four", "eight", "k"])
def test_no_path_of_the_persistent_step_is_a_trap(tmp_path, kernels):
    """Where a kernel wants the address of a host's constant (std::min() of it is enough), nvcc warns of nothing and writes
    a trap, which only a GPU would meet."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    if nvcc is None:
        pytest.skip("no nvcc")
    ptx = tmp_path / "persistent.ptx"
    subprocess.run([nvcc, "-std=c++20", "-O3", "-I", ROOT / "src", "-arch=sm_90a", "--expt-relaxed-constexpr", "-ptx",
                    ROOT / f"src/cuda/persistent/persistent_step_{kernels}.cu", "-o", ptx], check=True, timeout=600)
    text = ptx.read_text()
    assert ".entry" in text, "no kernel was compiled"
    assert "trap;" not in text
