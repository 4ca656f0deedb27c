// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/jinja_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "text/jinja/test_render.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

TEST(JinjaTemplateTest, WhiteSpaceIsControlledAsByTrimAndLstripBlocks) {
  EXPECT_EQ(rendered("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(rendered("a {%- if true -%}  b {%- endif -%} c"), "abc");
  EXPECT_EQ(rendered("a\n  {%+ if true %}b{% endif +%}\nc"), "a\n  b\nc");
  EXPECT_EQ(rendered("  {{ 1 }}\n  {# no #}\nx"), "  1\nx");
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% endraw %}\r\ny\r\n"), "{{ x }}y");
  EXPECT_EQ(rendered("a\r\nb\rc"), "a\nb\nc");
}

TEST(JinjaTemplateTest, LoopsKnowWhereTheyAre) {
  EXPECT_EQ(
      rendered("{% for x in 'abc' %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% endfor %}"),
      "1a,2b,3c");
  EXPECT_EQ(rendered("{% for x in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(rendered("{% for x in range(9) if x is odd %}{% if x == 7 %}{% break %}{% endif %}"
                     "{% if x == 3 %}{% continue %}{% endif %}{{ x }}{% endfor %}"),
            "15");
  EXPECT_EQ(rendered("{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }})"
                     "{% else %}{{ x }}{% endif %}{% endfor %}"),
            "1(2(3))");
}

TEST(JinjaTemplateTest, VariablesStayInTheirBlockButForNamespaces) {
  EXPECT_EQ(rendered("{% set x = 1 %}{% set n = namespace(x=1) %}{% for i in range(3) %}"
                     "{% set x = x + 1 %}{% set n.x = n.x + 1 %}{% endfor %}{{ x }}{{ n.x }}"),
            "14");
  EXPECT_EQ(rendered("{% if true %}{% set x = 2 %}{% endif %}{{ x }}"), "2");
}

TEST(JinjaTemplateTest, MacrosTakeDefaultsNamesAndCallers) {
  EXPECT_EQ(rendered("{% macro m(a, b='B') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
                     "{{ m(1) }}|{{ m(1, 2, 3, c=4) }}"),
            "1B(){}|12(3,){'c': 4}");
  EXPECT_EQ(rendered("{% macro box(t) %}<{{ caller(t) }}>{% endmacro %}"
                     "{% call(x) box('in') %}{{ x | upper }}{% endcall %}"),
            "<IN>");
}

TEST(JinjaTemplateTest, ErrorsNameTheLine) {
  EXPECT_THAT(error_of("a\n{% if %}"), HasSubstr("line 2"));
  EXPECT_THAT(error_of("a\nb\n{{ x.y }}"), HasSubstr("line 3: 'x' is undefined"));
  EXPECT_THAT(error_of("{% for x in y %}"), HasSubstr("endfor"));
  EXPECT_THAT(error_of("{% include 'x' %}"), HasSubstr("'include' is not supported"));
  EXPECT_THAT(error_of("{% do x %}"), HasSubstr("unknown tag 'do'"));
}

TEST(JinjaTemplateTest, TheTemplateCanRefuseInItsOwnWords) {
  EXPECT_EQ(error_of("{{ raise_exception('Roles must alternate') }}"), "Roles must alternate");
}

TEST(JinjaTemplateTest, TheTimeCanBeGiven) {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 6;
  time.tm_mday = 26;
  JinjaOptions options;
  options.now = time;
  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y') }}", Json::object(), options), "26 Jul 2026");
  EXPECT_EQ(rendered("{{ strftime_now('%Y') | length }}"), "4");
}

TEST(JinjaTemplateTest, ValuesPrintAsInPython) {
  EXPECT_EQ(rendered("{{ [none, true, 1.0, 1e16, \"it's\", {'a': (1,)}] }}"),
            "[None, True, 1.0, 1e+16, \"it's\", {'a': (1,)}]");
  EXPECT_EQ(rendered("{{ x | tojson }}", Json::parse(R"({"x": {"b": [1.5, "é\n"], "a": null}})")),
            R"({"b": [1.5, "é\n"], "a": null})");
}

TEST(JinjaTemplateTest, OneTemplateRendersInManyThreads) {
  const JinjaTemplate shared("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  const Json variables = Json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([copy = shared, &variables] {
      for (int round = 0; round < 50; ++round) EXPECT_EQ(copy.render(variables).size(), 4u);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace spillway
