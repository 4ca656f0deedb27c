// SPDX-License-Identifier: Apache-2.0
// Tests that harmful templates and inputs end soon, with an error of one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/jinja/test_render.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string repeated(std::string_view text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

TEST(HostileTemplateTest, EndlessWorkIsCutOff) {
  const std::string loop = "{% for a in range(99999) %}";
  EXPECT_THAT(error_of(loop + loop + "{% endfor %}{% endfor %}"), HasSubstr("more than"));
  EXPECT_THAT(error_of("{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}"
                       "{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("deep"));
  EXPECT_THAT(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
              HasSubstr("deep"));
  EXPECT_THAT(error_of("{{ range(10 ** 9) }}"), HasSubstr("range of"));
  EXPECT_THAT(error_of("{{ range(-(2 ** 62), 2 ** 62) }}"), HasSubstr("range of"));
}

TEST(HostileTemplateTest, LargeValuesAreRefusedBeforeTheyAreMade) {
  EXPECT_THAT(error_of("{{ 'a' * 10 ** 9 }}"), HasSubstr("bytes"));
  EXPECT_THAT(error_of("{{ [0] * 10 ** 9 }}"), HasSubstr("steps"));
  EXPECT_THAT(error_of("{{ 'x'.center(10 ** 12) }}"), HasSubstr("bytes"));
  EXPECT_NE(error_of("{{ '%999999999d' % 1 }}"), "");
  EXPECT_NE(error_of("{{ '{:999999999}'.format(1) }}"), "");
  EXPECT_THAT(error_of("{% set n = namespace(x='ab') %}{% for i in range(60) %}"
                       "{% set n.x = n.x ~ n.x %}{% endfor %}"),
              HasSubstr("bytes"));
  EXPECT_NE(error_of("{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
                     "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"),
            "");
  EXPECT_NE(error_of("{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
                     "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}"),
            "");
  EXPECT_THAT(
      error_of("{% for i in range(9999) %}{{ x }}{% endfor %}", {{"x", std::string(10000, 'x')}}),
      HasSubstr("bytes"));
}

TEST(HostileTemplateTest, DeepValuesAreNotFollowed) {
  const std::string deep =
      "{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor %}";
  EXPECT_THAT(error_of(deep + "{{ n.x }}"), HasSubstr("deep"));
  EXPECT_THAT(error_of(deep + "{{ n.x | tojson }}"), HasSubstr("deep"));
  EXPECT_THAT(error_of(deep + "{{ n.x == [n.x] }}"), HasSubstr("deep"));
  EXPECT_EQ(rendered("{% set n = namespace() %}{% set n.n = n %}{{ n.n.n.n is defined }}"), "True");
  EXPECT_THAT(error_of("{% set n = namespace() %}{% set n.n = n %}{{ n }}"), HasSubstr("deep"));
  const Json input =
      Json::parse("{\"x\":" + std::string(50000, '[') + std::string(50000, ']') + "}");
  EXPECT_THAT(error_of("{{ x }}", input), HasSubstr("deep"));
}

TEST(HostileTemplateTest, NestingOfTheTextIsLimited) {
  for (const std::string_view open : {"(", "[", "{'a':", "-", "not ", "x[", "x(", "1 if 1 else "})
    EXPECT_NE(error_of("{{ " + repeated(open, 100000)), "") << open;
  for (const std::string_view link : {".a", "|upper", "[0]", "()", " + 1", " and x", "~1 if 1"})
    EXPECT_NE(error_of("{{ x" + repeated(link, 100000) + " }}"), "") << link;
  EXPECT_NE(error_of(repeated("{% if 1 %}", 50000)), "");
  EXPECT_NE(error_of(repeated("{% for x in y %}", 50000)), "");
  EXPECT_NE(error_of(repeated("{% macro m() %}", 50000)), "");
  EXPECT_NE(error_of("{% set " + repeated("(", 50000)), "");
  EXPECT_NE(error_of(std::string(2 << 20, 'x')), "");
}

TEST(HostileTemplateTest, ArithmeticFailsInWords) {
  for (const std::string_view expression :
       {"1 / 0", "1 // 0", "1 % 0", "1.0 % 0", "2 ** 64", "10 ** 400", "0 ** -1",
        "9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2",
        "(-9223372036854775807 - 1) // -1", "-(-9223372036854775807 - 1)", "2.0 ** 5000",
        "99999999999999999999", "'inf' | float | int", "1e30 | int",
        "(-9223372036854775807 - 1) | abs"})
    EXPECT_NE(error_of("{{ " + std::string(expression) + " }}"), "") << expression;
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(HostileTemplateTest, NothingBehindTheValuesCanBeReached) {
  for (const std::string_view expression :
       {"''.__class__.__mro__", "x.__init__.__globals__", "[].append(1)", "{}.update(a=1)",
        "{}.pop('a')", "range.__self__.x", "'{0.__class__}'.format(1)", "x['__class__'].y",
        "''|attr('__class__')|attr('x')", "self.__init__()", "namespace.__init__.x",
        "{}.__class__.x", "m.__call__.__x__"})
    EXPECT_NE(error_of("{% macro m() %}{% endmacro %}{{ " + std::string(expression) + " }}"), "")
        << expression;
}

TEST(HostileTemplateTest, InvalidUtf8IsCarriedAlong) {
  const std::string bytes = "a\xFF\xC3 \xE6\xBC z\x80";
  const Json input = {{"x", bytes}};
  EXPECT_EQ(rendered("{{ x }}", input), bytes);
  EXPECT_EQ(rendered("{{ x | length }}", input), "8");
  for (const std::string_view filter :
       {"upper", "title", "tojson", "trim", "reverse", "list", "e", "urlencode", "wordcount",
        "capitalize", "string", "indent", "sort", "truncate(4)", "center(20)", "first", "last"})
    EXPECT_EQ(error_of("{{ x | " + std::string(filter) + " }}", input), "") << filter;
  EXPECT_EQ(
      error_of("{{ [x] }}{{ x[1] }}{{ x[::-2] }}{{ x.split() }}{{ x.strip('a\x80') }}", input), "");
  EXPECT_EQ(error_of("a\xFF{{ 'b\xFE' }}"), "");
}

TEST(HostileTemplateTest, SearchesAreLinear) {
  const Json input = {{"x", std::string(1 << 20, 'a')}, {"y", std::string(1 << 19, 'a') + "b"}};
  EXPECT_EQ(rendered("{{ x.find(y) }}{{ x.rfind('b' ~ y) }}{{ y in x }}{{ x.count(y) }}"
                     "{{ x.split(y) | length }}{{ x.rsplit(y) | length }}",
                     input),
            "-1-1False011");
}

// Templates put together from random parts and then damaged must give a text or an error, never a
// crash.
TEST(HostileTemplateTest, DamagedTemplatesDoNoHarm) {
  const std::vector<std::string_view> pieces = {
      "{% for m in messages %}",
      "{% endfor %}",
      "{% if m.role == 'user' %}",
      "{% elif x %}",
      "{% else %}",
      "{% endif %}",
      "{{ m.content | trim }}",
      "{{ '<|' + m['role'] + '|>\\n' }}",
      "{% set ns = namespace(a=0, b=[]) %}",
      "{% set ns.a = ns.a + 1 %}",
      "{{ ns.a }}",
      "{% macro f(a, b=2) %}",
      "{{ f(1, b=m) }}",
      "{% endmacro %}",
      "{% call f(3) %}",
      "{% endcall %}",
      "{%- set x %}",
      "{% endset -%}",
      "{{ messages | tojson(indent=2) }}",
      "{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}",
      "{{ loop.index0 % 2 }}",
      "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
      "{{ range(3) | map('string') | join(',') }}",
      "{{ '%s %d' % ('a', 3) }}",
      "{{ '{:>5} {}'.format('a', 2.5) }}",
      "{# comment #}",
      "{% raw %}",
      "{% endraw %}",
      "{{ x[1:2:-1] }}",
      "{{ {'a': [1, (2,)]} }}",
      "{{ 1 if x else 2 ** 3 // 4 }}",
      "text\n  ",
      "{% break %}",
      "{% continue %}",
      "{% filter upper %}",
      "{% endfilter %}",
      "{{ caller() }}",
      "{% generation %}",
      "{% endgeneration %}",
      "{{ not x is defined and 1 in [1] }}"};
  const Json input = Json::parse(
      R"({"messages": [{"role": "user", "content": " hi </think> "}, {"role": "a", "content": null}],
          "x": [1, 2, 3]})");
  JinjaOptions options;
  options.limits.steps = 20'000;
  options.limits.value_bytes = 1 << 20;
  std::mt19937 random(20261117);
  const auto below = [&](size_t count) { return static_cast<size_t>(random() % count); };
  for (int round = 0; round < 4000; ++round) {
    std::string source;
    for (size_t i = 0, count = 1 + below(14); i < count; ++i)
      source += pieces[below(pieces.size())];
    for (size_t i = 0, count = below(4); i < count && !source.empty(); ++i) {
      const size_t at = below(source.size());
      switch (below(4)) {
        case 0:
          source.erase(at, 1 + below(5));
          break;
        case 1:
          source[at] = static_cast<char>(random());
          break;
        case 2:
          source.insert(at, 1, "{}%|()[]'\"-+.,:=~*#\\"[below(20)]);
          break;
        default:
          source.insert(at, source.substr(below(source.size()), below(20)));
      }
    }
    static_cast<void>(error_of(source, input, options));
  }
}

}  // namespace
}  // namespace spillway
