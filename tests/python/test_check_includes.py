# SPDX-License-Identifier: Apache-2.0
"""scripts/check_includes.py: a clean tree passes, and each rule fails when it is broken."""

import pytest

from script_checks import run_check

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = SPDX + "// Something.\n#pragma once\n"
TABLE = "# the table\nbase:\ntensor: base\ncuda: tensor\ncli: cuda\n"

CLEAN_TREE = {
    "src/folders.txt": TABLE,
    "src/base/error.h": HEADER,
    "src/base/error.cc": SPDX + '#include "base/error.h"\n',
    "src/base/error_test.cc": SPDX + '#include <gtest/gtest.h>\n#include "base/error.h"\n#include "tests/fixture.h"\n',
    "src/tensor/view.h": HEADER + '#include <vector>\n#include "base/error.h"\n',
    "src/cuda/ops.cu": SPDX + '#include <cuda_runtime.h>\n#include <cublasLt.h>\n#include "tensor/view.h"\n',
    "src/cli/main.cc": SPDX + '#include "cuda/device.h"\n',
    "src/cuda/device.h": HEADER,
    "tests/fixture.h": HEADER,
}


def check(root, changes=None):
    """(exit code, output) for the clean tree with `changes` written over it."""
    return run_check("check_includes.py", root, {**CLEAN_TREE, **(changes or {})})


def test_a_clean_tree_passes(tmp_path):
    code, output = check(tmp_path)
    assert code == 0, output
    assert output == "7 files, 10 includes: 0 findings\n"


BROKEN = {
    "folder that is ruled out, by way of another": (
        {"src/folders.txt": TABLE + "!cli: base\n", "src/cuda/device.h": HEADER + '#include "tensor/view.h"\n'},
        "src/cli/main.cc:2: brings along base/ (cuda/device.h -> tensor/view.h -> base/error.h), which src/folders.txt rules out",
    ),
    "ruling out for a folder that is not there": ({"src/folders.txt": TABLE + "!serve: base\n"}, "src/folders.txt:6: '!serve' lists 'serve', which is not in the table"),
    "folder that the table does not allow": (
        {"src/base/error.cc": SPDX + '#include "tensor/view.h"\n'},
        "src/base/error.cc:2: base/ may not include tensor/",
    ),
    "allowed only for cli": (
        {"src/tensor/view.cc": SPDX + '#include "cuda/device.h"\n'},
        "src/tensor/view.cc:2: tensor/ may not include cuda/",
    ),
    "test beside the code obeys the table": (
        {"src/base/error_test.cc": SPDX + '#include "tensor/view.h"\n'},
        "src/base/error_test.cc:2: base/ may not include tensor/",
    ),
    "only tests include tests/": (
        {"src/base/error.cc": SPDX + '#include "tests/fixture.h"\n'},
        'src/base/error.cc:2: "tests/fixture.h" must start with a folder of src/',
    ),
    "missing file of tests/": (
        {"src/base/error_test.cc": SPDX + '#include "tests/gone.h"\n'},
        'src/base/error_test.cc:2: "tests/gone.h" does not exist',
    ),
    "quoted include without a folder": (
        {"src/base/error.cc": SPDX + '#include "error.h"\n'},
        'src/base/error.cc:2: "error.h" must start with a folder of src/',
    ),
    "quoted include of a missing file": (
        {"src/base/error.cc": SPDX + '\n  #  include "base/gone.h"\n'},
        'src/base/error.cc:3: "base/gone.h" does not exist',
    ),
    "our header in angle brackets": (
        {"src/tensor/view.cc": SPDX + "#include <base/error.h>\n"},
        "src/tensor/view.cc:2: our own headers take quotes",
    ),
    "CUDA run time outside cuda/": (
        {"src/cli/main.cc": SPDX + "#include <cuda_runtime.h>\n"},
        "src/cli/main.cc:2: <cuda_runtime.h>: only cuda/",
    ),
    "cuBLAS outside cuda/": ({"src/cli/main.cc": SPDX + "#include <cublasLt.h>\n"}, "src/cli/main.cc:2: <cublasLt.h>"),
    "cuDNN outside cuda/": ({"src/cli/main.cc": SPDX + "#include <cudnn.h>\n"}, "src/cli/main.cc:2: <cudnn.h>"),
    "NCCL outside cuda/": ({"src/cli/main.cc": SPDX + "#include <nccl.h>\n"}, "src/cli/main.cc:2: <nccl.h>"),
    "JSON in a header": (
        {"src/base/error.h": HEADER + "#include <nlohmann/json.hpp>\n"},
        "src/base/error.h:4: <nlohmann/json.hpp> is slow to compile; a header takes <nlohmann/json_fwd.hpp>",
    ),
    "Asio outside HTTP": ({"src/base/error.cc": SPDX + "#include <boost/asio.hpp>\n"}, "src/base/error.cc:2: <boost/asio.hpp> is slow to compile; only serve/http"),
    "CLI11 outside the two files that hide it": (
        {"src/cli/main.cc": SPDX + "#include <CLI/CLI.hpp>\n"},
        "src/cli/main.cc:2: <CLI/CLI.hpp> is slow to compile; only cli/command_line.cc",
    ),
    "header without SPDX": (
        {"src/base/error.h": "#pragma once\n"},
        "src/base/error.h:1: the first line must be '// SPDX",
    ),
    "header without pragma once": ({"src/base/error.h": SPDX}, "src/base/error.h:1: a header needs '#pragma once'"),
    "banned name utils": ({"src/base/utils.h": HEADER}, "src/base/utils.h:1: name the file after its main type"),
    "banned name common": ({"src/base/common.h": HEADER}, "src/base/common.h:1: name the file"),
    "banned name helpers": ({"src/base/helpers.cc": SPDX}, "src/base/helpers.cc:1: name the file"),
    "file of 801 lines": ({"src/base/error.cc": SPDX + "\n" * 800}, "src/base/error.cc:801: 801 lines"),
    "folder that is not in the table": ({"src/extra/x.h": HEADER}, "src/extra:1: this folder is not in src/folders.txt"),
    "source outside the folders": ({"src/main.cc": SPDX}, "src/main.cc:1: sources belong into a folder"),
    "cycle in the table": (
        {"src/folders.txt": TABLE.replace("base:\n", "base: cli\n")},
        "src/folders.txt:2: cycle: base -> cli -> cuda -> tensor -> base",
    ),
    "unknown folder in the table": (
        {"src/folders.txt": TABLE.replace("base:\n", "base: nowhere\n")},
        "src/folders.txt:2: 'base' lists 'nowhere'",
    ),
    "folder listed twice": ({"src/folders.txt": TABLE + "base:\n"}, "src/folders.txt:6: folder 'base' is listed twice"),
    "permission that no file needs": (
        {"src/folders.txt": TABLE.replace("cli: cuda", "cli: base cuda")},
        "src/folders.txt:5: 'cli' lists 'base', which none of its files includes",
    ),
    "pairs in a circle": (
        {"src/base/error.cc": SPDX + '#include "base/log.h"\n', "src/base/log.h": HEADER + '#include "base/error.h"\n'},
        "src/base/error.cc:2: circle of base/error, base/log: base/error includes base/log",
    ),
    "pairs in a circle by way of a third": (
        {
            "src/base/error.h": HEADER + '#include "base/log.h"\n',
            "src/base/log.h": HEADER,
            "src/base/log.cc": SPDX + '#include "base/level.h"\n',
            "src/base/level.h": HEADER + '#include "base/error.h"\n',
        },
        "src/base/level.h:4: circle of base/error, base/level, base/log: base/level includes base/error",
    ),
    "line that cannot be read": ({"src/folders.txt": TABLE + "Base = x\n"}, "src/folders.txt:6: expected"),
}


@pytest.mark.parametrize(("changes", "finding"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_is_found(tmp_path, changes, finding):
    code, output = check(tmp_path, changes)
    assert code == 1, output
    findings = output.splitlines()[:-1]
    assert any(line.startswith(finding) for line in findings), output


def test_a_test_is_in_no_circle(tmp_path):
    changes = {"src/base/test_log.h": HEADER + '#include "base/error.h"\n', "src/base/error_test.cc": SPDX + '#include "base/test_log.h"\n'}
    code, output = check(tmp_path, changes)
    assert code == 0, output


def test_a_file_of_800_lines_passes(tmp_path):
    code, output = check(tmp_path, {"src/base/error.cc": SPDX + "\n" * 799})
    assert code == 0, output


def test_includes_through_a_macro_are_left_alone(tmp_path):
    code, output = check(tmp_path, {"src/base/error.cc": SPDX + "#include HWY_TARGET_INCLUDE\n"})
    assert code == 0, output


def test_a_per_target_header_has_a_toggle_instead_of_pragma_once(tmp_path):
    toggle = SPDX + "#if defined(SPILLWAY_X_INL_H_) == defined(HWY_TARGET_TOGGLE)\n#endif\n"
    code, output = check(tmp_path, {"src/base/x_inl.h": toggle})
    assert code == 0, output
    code, output = check(tmp_path, {"src/base/x_inl.h": SPDX})
    assert code == 1, output
