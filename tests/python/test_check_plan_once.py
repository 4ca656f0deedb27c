# SPDX-License-Identifier: Apache-2.0
"""scripts/check_plan_once.py: plan/ may compute what follows from a plan, in few places; no other folder may."""

from script_checks import run_check

FUNCTIONS = {
    "footprint": "footprint.cc",
    "weight_homes": "weight_homes.cc",
    "streaming_schedules": "streaming_schedule.cc",
    "balanced_linear_shares": "linear_shares.cc",
    "with_residence_by_gain": "residence.cc",
    "search_plans": "search.cc",
    "place_greedily": "greedy_placement.cc",
    "try_place_greedily": "greedy_placement.cc",
}


def check(root, resolve="", others=None):
    """Runs the check on a tree where plan/resolve.cc calls each function once and then has the lines of `resolve`."""
    calls = "".join(f"  {name}(model);\n" for name in FUNCTIONS)
    files = {f"src/plan/{file}": "" for file in FUNCTIONS.values()}
    for name, file in FUNCTIONS.items():
        files[f"src/plan/{file}"] += f"Bytes {name}(const Model& model) {{ return helper(model); }}\n"
    files["src/plan/resolve.cc"] = f"void resolve() {{\n{calls}{resolve}}}\n"
    return run_check("check_plan_once.py", root, {**files, **(others or {})})


def test_one_caller_of_each_passes(tmp_path):
    assert check(tmp_path) == (0, "8 functions: 0 findings\n")


def test_a_caller_outside_the_plan_folder_is_found(tmp_path):
    code, text = check(tmp_path, others={"src/runtime/runner.cc": "void run() { use(weight_homes(model)); }\n"})
    assert code == 1
    assert "src/runtime/runner.cc: calls weight_homes(), which only plan/ may" in text


def test_too_many_callers_inside_are_found(tmp_path):
    code, text = check(tmp_path, resolve="  return weight_homes(model);\n")
    assert code == 1
    assert "src/plan: 2 calls of weight_homes(), at most 1" in text


def test_tests_comments_and_messages_do_not_count(tmp_path):
    others = {
        "src/runtime/runner.cc": '// footprint(model)\nvoid run() { say("footprint()"); }\n',
        "src/runtime/runner_test.cc": "void run() { use(footprint(model)); }\n",
    }
    assert check(tmp_path, others=others) == (0, "8 functions: 0 findings\n")


def test_a_function_without_callers_leaves_the_list(tmp_path):
    code, text = check(tmp_path, others={"src/plan/resolve.cc": "void resolve() {}\n"})
    assert code == 1
    assert "no calls of footprint(); take it out of scripts/check_plan_once.py" in text


def test_a_queue_of_copies_made_by_another_file_is_found(tmp_path):
    others = {
        "src/memory/transfer_scheduler.cc": "void open() { keep(device.make_stream()); }\n",
        "src/runtime/kv_swap.cc": "void open() { in_ = device.make_stream(); }\n",
    }
    code, text = check(tmp_path, others=others)
    assert code == 1
    assert "src/runtime/kv_swap.cc: makes a queue of copies; ask the TransferScheduler for one" in text
    assert "transfer_scheduler.cc" not in text
