// SPDX-License-Identifier: Apache-2.0
// Registers and prints the metrics of one source. Only the files that fill it include this, since
// Prometheus' headers take long to compile.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <utility>
#include <vector>

namespace spillway {

// Owns its metrics, which are as thread-safe as Prometheus makes them.
class MetricRegistry {
 public:
  prometheus::Gauge& gauge(const char* name, const char* help,
                           const prometheus::Labels& labels = {}) {
    return gauges(name, help).Add(labels);
  }
  prometheus::Counter& counter(const char* name, const char* help,
                               const prometheus::Labels& labels = {}) {
    return counters(name, help).Add(labels);
  }
  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add({}, bounds);
  }
  // These make metrics of one name whose labels are known later.
  prometheus::Family<prometheus::Gauge>& gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }
  prometheus::Family<prometheus::Counter>& counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  }

  // Shows the metric `now` under the name that it had before, too, with the same values.
  void keep_old_name(const char* old, const char* now) { old_names_.emplace_back(old, now); }

  // Returns the text format that Prometheus reads.
  std::string text() const {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    const size_t count = families.size();
    for (const auto& [old, now] : old_names_) {
      for (size_t i = 0; i < count; ++i) {
        if (families[i].name != now) continue;
        prometheus::MetricFamily copy = families[i];
        copy.name = old;
        copy.help = "The old name of " + now + ".";
        families.push_back(std::move(copy));
      }
    }
    return prometheus::TextSerializer().Serialize(families);
  }

 private:
  prometheus::Registry registry_;
  std::vector<std::pair<std::string, std::string>> old_names_;
};

// Raises a counter to `total`, which must not decrease.
inline void follow(prometheus::Counter& counter, double total) {
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

}  // namespace spillway
