# SPDX-License-Identifier: Apache-2.0
"""scripts/check_unused.py: names with a use pass, and each kind of name without one is found."""

import pytest

from script_checks import run_check

HEADER = """
struct Shape {
  int area() const { return kSides * width_; }
  int width_ = 0;
};
constexpr int kSides = 4;
#define SHAPES_ARE(x) (x)
// area_of(unused_in_a_comment)
int area_of(const Shape& shape);
template <class T>
T twice(T value);
"""
SOURCE = """
#include "base/shape.h"
int area_of(const Shape& shape) { return shape.area(); }
int use() {
  return SHAPES_ARE(area_of({})) + twice(1);
}
"""


def check(root, header="", source="", others=None):
    files = {"src/base/shape.h": HEADER + header, "src/base/shape.cc": SOURCE + source, "bench/a.cc": "int main() { return use(); }"}
    return run_check("check_unused.py", root, {**files, **(others or {})})


def test_what_has_users_passes(tmp_path):
    assert check(tmp_path) == (0, "0 findings, 0 names allowed without a user\n")


@pytest.mark.parametrize(
    ("kind", "name", "header", "source"),
    [
        ("function", "perimeter", "int perimeter(int sides);\n", "int perimeter(int sides) { return sides; }\n"),
        ("function", "is_flat", "struct Flat {\n  bool is_flat() const;\n};\nFlat f;\n", "bool Flat::is_flat() const { return true; }\n"),
        ("function", "depth", "inline int depth() { return 0; }\n", ""),
        ("type", "Circle", "class Circle {\n};\n", ""),
        ("type", "Square", "class Square {\n  explicit Square(int side);\n  Square(const Square&) = delete;\n};\n", "Square::Square(int) {}\n"),
        ("constant", "kCorners", "inline constexpr int kCorners = 4;\n", ""),
        ("macro", "ROUND", "#define ROUND 1\n", ""),
    ],
)
@pytest.mark.parametrize("tested", [False, True], ids=["", "tested"])
def test_a_name_without_a_user_is_found(tmp_path, kind, name, header, source, tested):
    others = {"src/base/shape_test.cc": f"int x = {name}();", "tests/x.cc": f"int y = {name};"} if tested else {}
    code, output = check(tmp_path, header, source, others)
    assert code == 1
    assert f": {kind} {name} has no user outside tests" in output
    assert output.endswith("1 findings, 0 names allowed without a user\n")


def test_text_and_comments_are_no_users(tmp_path):
    code, output = check(tmp_path, "int perimeter(int);\n", 'const char* s = "perimeter(1)";  // perimeter(2)\n/* perimeter(3) */\n')
    assert code == 1
    assert "perimeter" in output


def test_allowed_names_pass_until_they_have_users(tmp_path):
    header, allowed = "int perimeter(int);\n", {"scripts/unused_allowed.txt": "# why\nperimeter  for tests\n"}
    assert check(tmp_path, header, "", allowed)[0] == 0
    code, output = check(tmp_path, header, "int other() {\n  return perimeter(1);\n}\n", allowed)
    assert code == 1
    assert "unused_allowed.txt:2: perimeter has users, or is gone" in output
