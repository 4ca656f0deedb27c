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

  // Returns the text format that Prometheus reads.
  std::string text() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

 private:
  prometheus::Registry registry_;
};

// Raises a counter to `total`, which must not decrease.
inline void follow(prometheus::Counter& counter, double total) {
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

}  // namespace spillway
