# SPDX-License-Identifier: Apache-2.0
"""scripts/test_summary.py counts what ctest, GoogleTest and pytest report."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_summary.py"

CTEST = """<testsuite name="Linux-c++" tests="5" failures="1">
<testcase name="A.Passes" classname="A.Passes" time="0.1" status="run"><system-out>ok</system-out></testcase>
<testcase name="A.Skips" classname="A.Skips" time="0.1" status="notrun">
<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[ RUN      ] A.Skips
/x/a_test.cc:6: Skipped
the data is
not here

[  SKIPPED ] A.Skips (0 ms)</system-out></testcase>
<testcase name="A.Fails" classname="A.Fails" time="0.1" status="fail"><failure message="Failed"/></testcase>
<testcase name="b_test_NOT_BUILT" classname="b_test_NOT_BUILT" status="notrun"><skipped message="Unable to find executable"/></testcase>
<testcase name="A.Disabled" classname="A.Disabled" status="disabled"><skipped message="Disabled"/></testcase>
</testsuite>"""
GTEST = """<testsuites><testsuite name="C">
<testcase name="Passes" status="run" result="completed" classname="C"/>
<testcase name="Skips" status="run" result="skipped" classname="C"><skipped message="/x/c_test.cc:9&#x0A;no model"/></testcase>
<testcase name="DISABLED_Later" status="notrun" result="suppressed" classname="C"/>
<testcase name="Fails" status="run" result="completed" classname="C"><failure message="a != b" type=""/></testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest">
<testcase classname="tests.python.test_x" name="test_passes"/>
<testcase classname="tests.python.test_x" name="test_skips"><skipped type="pytest.skip" message="torch is not installed"/></testcase>
<testcase classname="tests.python.test_x" name="test_breaks"><error message="failed on setup"/></testcase>
</testsuite></testsuites>"""


def summarize(tmp_path, reports, *options):
    arguments = []
    for name, text in reports.items():
        (tmp_path / f"{name}.xml").write_text(text)
        arguments.append(f"{name}={tmp_path / name}.xml")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout.splitlines()


def test_all_kinds_of_reports_are_added_up(tmp_path):
    code, lines = summarize(tmp_path, {"release": CTEST, "sanitized": GTEST, "python": PYTEST})
    assert code == 1
    assert lines[-1] == "3 passed, 4 failed, 5 skipped"
    assert "skipped: release: A.Skips (the data is not here)" in lines
    assert "skipped: sanitized: C.Skips (no model)" in lines
    assert "skipped: python: test_x.test_skips (torch is not installed)" in lines
    assert "failed: release: b_test_NOT_BUILT (Unable to find executable)" in lines
    assert "failed: python: test_x.test_breaks (failed on setup)" in lines


def test_all_passed_is_success(tmp_path):
    report = '<testsuite><testcase name="A" classname="A" status="run"/></testsuite>'
    assert summarize(tmp_path, {"release": report})[0] == 0
    code, lines = summarize(tmp_path, {"release": report}, "--skipped", "tests/python=no network")
    assert code == 0
    assert lines[-1] == "1 passed, 0 failed, 1 skipped"
    assert "skipped: tests/python (no network)" in lines


def test_a_failed_stage_is_a_failure(tmp_path):
    report = '<testsuite><testcase name="A" classname="A" status="run"/></testsuite>'
    options = ["--failed", "format check", f"again={tmp_path / 'release'}.xml", "--skipped", "x=y"]
    code, lines = summarize(tmp_path, {"release": report}, *options)
    assert code == 1
    assert lines[-1] == "2 passed, 1 failed, 1 skipped"


def test_a_missing_or_broken_report_is_a_failure(tmp_path):
    code, lines = summarize(tmp_path, {"release": "<testsuite>"}, f"gone={tmp_path / 'gone.xml'}")
    assert code == 1
    assert lines[-1] == "0 passed, 2 failed, 0 skipped"


def test_nothing_that_ran_is_no_success(tmp_path):
    assert summarize(tmp_path, {})[0] == 1
    assert summarize(tmp_path, {}, "--skipped", "everything=no reason")[0] == 1
