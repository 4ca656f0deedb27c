# SPDX-License-Identifier: Apache-2.0
"""Inspects the compiled code of kernels that share code with the host, which needs no GPU."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = dict(os.environ)  # with the user's compiler cache, which other tests must not use


@pytest.mark.parametrize("kernels", ["kernel", "four", "eight", "k"])
def test_no_path_of_the_persistent_step_is_a_trap(tmp_path, kernels):
    """If a kernel takes the address of a host constant (std::min() of it is enough), nvcc emits a trap without a warning,
    which only a run on a GPU would show."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    if nvcc is None:
        pytest.skip("no nvcc")
    # Compiles to an object file, in which PTX is text too, since compiler caches store object files.
    cache = [found] if (found := shutil.which("ccache")) else []
    built = tmp_path / "persistent.o"
    subprocess.run([*cache, nvcc, "-std=c++20", "-O3", "-I", ROOT / "src", "-DFMT_USE_CONSTEXPR=1", "--expt-relaxed-constexpr",
                    "-gencode", "arch=compute_90a,code=compute_90a", "--no-compress", "-c",
                    ROOT / f"src/cuda/persistent/persistent_step_{kernels}.cu", "-o", built], check=True, timeout=600,
                   env=ENVIRONMENT)  # fmt: skip
    text = built.read_bytes()
    assert b".entry" in text, "no kernel was compiled"
    assert b"trap;" not in text
