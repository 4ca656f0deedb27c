// SPDX-License-Identifier: Apache-2.0
#include "plan/share_program.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "plan/linear_program.h"
#include "plan/link_prices.h"
#include "tensor/attention_layout.h"

namespace spillway {

ShareProgram::ShareProgram(const SearchRequest& request, const MemoryCheck& memory,
                           Predictor& predictor)
    : r_(request),
      memory_(memory),
      predictor_(predictor),
      shares_(request),
      discrete_(request.hardware.has_device()),
      quantized_(is_quantized(request.model.main_dtype())),
      requests_(static_cast<double>(request.workload.requests())),
      prompt_tokens_(static_cast<double>(request.workload.prompt_tokens())),
      decode_keys_(request.workload.decode_keys()) {
  for (const BoundWeight& weight : r_.model.weights) {
    if (weight.slot.layer >= 0 && !weight.slot.is_vector())
      weight_bytes_ += static_cast<double>(weight.bytes());
  }
  layer_bytes_ = weight_bytes_ / r_.model.spec.layer_count();
}

ShareProgram::Sizes ShareProgram::sizes_of(const FoundPlan& found) {
  Sizes sizes;
  const RunLayout& layout = found.needs.layout;
  sizes.kv =
      static_cast<double>(layout.kv_bytes(int64_t{layout.device_blocks} + layout.blocks_away()));
  Plan away = found.plan;
  away.weights = discrete_ ? TierShares{0, 1, 0} : TierShares{0, 0, 1};
  if (discrete_) away.kv = {0, 1, 0};
  away.attention = AttentionPlace::kCpu;
  const Footprint needs = memory_.needs(away, found.size);
  sizes.step_tokens = needs.layout.max_tokens;
  sizes.micro_tokens = needs.layout.micro_tokens;
  sizes.fixed_tokens = away.activations.device * static_cast<double>(sizes.step_tokens);
  sizes.device_fixed = static_cast<double>(needs.device.total()) -
                       static_cast<double>(needs.device.of(MemoryTag::kStaging)) +
                       static_cast<double>(needs.workspace);
  if (!discrete_) sizes.device_fixed -= sizes.kv;
  return sizes;
}

bool ShareProgram::try_shares(FoundPlan& found, bool kv_on_disk) {
  const Hardware& h = r_.hardware;
  Plan& plan = found.plan;
  const Sizes sizes = sizes_of(found);
  const auto device_budget = static_cast<double>(discrete_ ? r_.budgets.device : r_.budgets.host);
  if (sizes.device_fixed > device_budget) return false;
  const auto layers = static_cast<double>(r_.model.spec.layer_count());
  // The time of products does not depend on shares: it is taken from the prices of a plan with
  // everything on the device.
  FoundPlan resident = found;
  resident.plan.attention = AttentionPlace::kAuto;
  resident.plan.activations = {};
  resident.needs = memory_.needs(resident.plan, resident.size);
  resident.needs.layout.max_tokens = static_cast<int>(sizes.step_tokens);
  resident.needs.layout.micro_tokens = sizes.micro_tokens;
  resident.predicted =
      predictor_.predict(resident.plan, resident.needs, resident.size, PriceBy::kSums);
  const double blocks = std::ceil(requests_ / static_cast<double>(found.size.sequences));
  const auto per_layer = [&](const StepEstimate& step) {
    return step.busy[static_cast<size_t>(Worker::kDevice)] / layers;
  };
  const double decode_steps =
      resident.predicted.step_s > 0 ? resident.predicted.decode_s / resident.predicted.step_s : 0;
  const double prefill_steps =
      resident.predicted.prefill_step.seconds > 0
          ? resident.predicted.prefill_s / resident.predicted.prefill_step.seconds
          : 0;
  const double all_kv =  // bytes of a layer's KV that a decoding step reads
      static_cast<double>(found.size.sequences) * decode_keys_ *
      found.needs.layout.kv.mean_token_bytes(decode_keys_);
  const double new_kv = prompt_tokens_ / blocks / std::max(1.0, prefill_steps / blocks) *
                        found.needs.layout.kv.mean_token_bytes(1);
  const KvTraffic traffic = kv_traffic(h, r_.model.spec, found.size.kv_type, plan.attention_topk);
  const double group = query_group(r_.model.spec);
  const double attend =
      attention_seconds(h.device(), found.size.kv_type, group, all_kv * traffic.read);
  const double other = std::max(0.0, per_layer(resident.predicted.decode_step) - attend);

  LinearProgram program;
  constexpr double kAny = LinearProgram::kAny;
  // Adds a share from `least` to `most`, or fixes it to the one that is given.
  const auto share = [&](const std::optional<TierShares>& of, Tier tier, double most,
                         double least = 0) {
    if (!of) return program.variable(0, least, most);
    const double fixed = tier == Tier::kDisk   ? of->disk
                         : tier == Tier::kHost ? (discrete_ ? of->host : 0)
                                               : of->device + (discrete_ ? 0 : of->host);
    return program.variable(0, fixed, fixed);
  };
  const GivenFields& given = r_.given;
  const int wd = share(given.weights, Tier::kDevice, 1),
            wh = share(given.weights, Tier::kHost, discrete_ ? 1 : 0),
            wk = share(given.weights, Tier::kDisk, r_.budgets.disk > 0 ? 1 : 0);
  const bool one_home = shares_.kv_has_one_home(plan);
  const int cd = share(given.kv, Tier::kDevice, one_home ? 0 : 1),
            ch = share(given.kv, Tier::kHost, discrete_ ? 1 : 0),
            ck = share(given.kv, Tier::kDisk, kv_on_disk && !one_home ? 1 : 0);
  // The share of the sequences to which the CPU attends.
  const int on_cpu = program.variable(0, 0, plan.attention == AttentionPlace::kGpu ? 0 : 1);
  // Shares of the hidden states of a step's tokens between layers: on the device, in host memory.
  const bool hidden_states_offloaded = plan.activations.device < 1;
  const int ad = share(given.activations, Tier::kDevice, 1,
                       hidden_states_offloaded
                           ? PlanShares::least_hidden_states(found, sizes.step_tokens)
                           : 1),
            ah = share(given.activations, Tier::kHost, 1);
  if (!given.activations) program.constrain({{ad, 1}, {ah, 1}}, 1, 1);
  const double row = 4.0 * static_cast<double>(r_.model.spec.hidden);
  const double rows = row * static_cast<double>(sizes.step_tokens);
  const int decode = program.variable(layers * decode_steps);
  const int prefill = program.variable(layers * prefill_steps);
  program.constrain({{wd, 1}, {wh, 1}, {wk, 1}}, 1, 1);
  program.constrain({{cd, 1}, {ch, 1}, {ck, 1}}, 1, 1);
  if (plan.attention == AttentionPlace::kCpu) {
    program.constrain({{on_cpu, 1}, {ch, -1}}, 0, 0);
  } else if (plan.attention == AttentionPlace::kAuto && r_.given.cpu_attention) {
    program.constrain({{on_cpu, 1}, {ch, -*r_.given.cpu_attention}}, 0, 0);
  } else {
    program.constrain({{on_cpu, 1}, {ch, -1}}, -kAny, 0);
  }
  const LinkPrices links(h);
  for (const int time : {decode, prefill}) {
    const bool decoding = time == decode;
    const double read = decoding ? all_kv : 0, written = decoding ? 0 : new_kv;
    if (discrete_) {
      using Source = Hardware::Source;
      const Source weights = quantized_ ? Source::kPageable : Source::kPinned;
      const double weights_s = links.bulk_up(layer_bytes_, weights),
                   kv_s = links.bulk_up(read, Source::kPageable),
                   host_kv_s =
                       links.bulk_up(read * (traffic.moved + traffic.over_bus), Source::kPageable),
                   rows_up_s = links.bulk_up(rows, Source::kPinned),
                   rows_down_s = links.bulk_down(rows), written_s = links.bulk_down(written);
      std::vector<std::pair<int, double>> link{
          {wh, weights_s}, {wk, weights_s}, {ch, host_kv_s}, {ck, kv_s}, {time, -1}};
      link.emplace_back(decoding ? on_cpu : ah, decoding ? -host_kv_s : rows_up_s);
      program.constrain(link, -kAny, 0);
      program.constrain(
          {{ch, written_s}, {ck, written_s}, {ah, decoding ? 0 : rows_down_s}, {time, -1}}, -kAny,
          0);
    }
    program.constrain(
        {{wk, links.bulk_disk_read(layer_bytes_)}, {ck, links.bulk_disk_read(read)}, {time, -1}},
        -kAny, 0);
    program.constrain({{ck, links.bulk_disk_write(written)}, {time, -1}}, -kAny, 0);
  }
  program.constrain({{decode, 1}, {on_cpu, attend}}, other + attend, kAny);
  program.constrain({{prefill, 1}}, per_layer(resident.predicted.prefill_step), kAny);
  if (discrete_) {
    const double cpu = attention_seconds(h.host, found.size.kv_type, group, all_kv * traffic.read) /
                       h.cpu_beside_link;
    program.constrain({{on_cpu, cpu}, {decode, -1}}, -kAny, 0);
  }
  // The device holds two layers' worth of streamed weights, and pages of a layer that are being
  // copied.
  const auto parts =
      plan.micro_batch > 0
          ? std::max(1.0, static_cast<double>(found.size.sequences) / plan.micro_batch)
          : 1;
  const double slots = 2 * layer_bytes_, staging = 2 * sizes.kv / layers / parts;
  program.constrain({{wd, weight_bytes_},
                     {wh, slots},
                     {wk, slots},
                     {cd, sizes.kv},
                     {ch, staging},
                     {ck, staging},
                     {on_cpu, -staging},
                     {ad, rows}},
                    -kAny, device_budget - sizes.device_fixed + sizes.fixed_tokens * row);
  if (discrete_) {
    program.constrain({{wh, weight_bytes_}, {ch, sizes.kv}, {ah, rows}}, -kAny,
                      static_cast<double>(r_.budgets.host) * 0.98);
  }
  program.constrain({{wk, weight_bytes_}, {ck, sizes.kv}}, -kAny,
                    static_cast<double>(r_.budgets.disk) * 0.98);
  const auto solution = program.try_solve();
  if (!solution) return false;
  const auto value = [&](int variable) {
    return std::max(0.0, (*solution)[static_cast<size_t>(variable)]);
  };
  shares_.set_weights(plan, value(wd), value(wh));
  shares_.set_kv(found, value(cd), value(ch));
  if (hidden_states_offloaded && !given.activations)
    PlanShares::set_hidden_states(found, value(ad), sizes.step_tokens);
  if (plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 && !r_.given.cpu_attention)
    plan.cpu_attention = PlanShares::whole_sequences(value(on_cpu) / plan.kv.host, found);
  return true;
}

}  // namespace spillway
