// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {

KvCache::KvCache(Device& device, const KvShapes& shapes, int32_t blocks)
    : KvCache(device, device, shapes, Sizes{.device_blocks = blocks}) {}

KvCache::KvCache(Device& device, Device& host, const KvShapes& shapes, const Sizes& sizes)
    : shapes_(shapes), swapped_(shapes.swapped_group()) {
  SPW_ASSERT(sizes.groups.empty() || sizes.groups.size() == static_cast<size_t>(shapes.groups()));
  uint64_t disk_left = sizes.disk_budget;
  for (int group = 0; group < shapes.groups(); ++group) {
    const Sizes::Blocks blocks =
        sizes.groups.empty()
            ? Sizes::Blocks{sizes.device_blocks, sizes.host_blocks, sizes.disk_blocks}
            : sizes.groups[static_cast<size_t>(group)];
    groups_.emplace_back(device, host, shapes.group(group),
                         KvGroupSizes{.device_blocks = blocks.device,
                                      .host_blocks = blocks.host,
                                      .disk_blocks = blocks.disk,
                                      .most_swapped = group == swapped_ ? sizes.most_swapped : 0,
                                      .spare_buffers = sizes.spare_buffers},
                         KvDisk{sizes.queue, sizes.disk_dir, disk_left});
    if (const BlockFile* const file = groups_.back().disk(); file != nullptr)
      disk_left -= std::min(disk_left, file->file_bytes());
  }
}

std::vector<int32_t> KvCache::pools(int group) const {
  std::vector<int32_t> sizes = {device_blocks(group)};
  if (host_blocks(group) > 0 || disk_blocks(group) > 0) sizes.push_back(host_blocks(group));
  if (disk_blocks(group) > 0) sizes.push_back(disk_blocks(group));
  return sizes;
}

std::vector<GroupPools> KvCache::group_pools() const {
  std::vector<GroupPools> all;
  for (int group = 0; group < groups(); ++group)
    all.push_back({.rule = shape(group).rule, .pools = pools(group)});
  return all;
}

std::vector<BlockId> KvCache::blocks_in_order(int64_t first, int64_t count, int group) const {
  SPW_ASSERT(first >= 0 && count >= 0 && first + count <= blocks(group));
  std::vector<BlockId> all = block_range(0, device_blocks(group), Tier::kDevice, group);
  for (const BlockId block : block_range(0, host_blocks(group), Tier::kHost, group))
    all.push_back(block);
  for (const BlockId block : block_range(0, disk_blocks(group), Tier::kDisk, group))
    all.push_back(block);
  return {all.begin() + first, all.begin() + first + count};
}

std::vector<KvPlanes> KvCache::planes_of_step() const {
  std::vector<std::vector<KvPlanes>> of_groups;
  for (const KvGroupCache& group : groups_) of_groups.push_back(group.planes_of_step());
  if (of_groups.size() == 1 && of_groups.front().size() == static_cast<size_t>(shapes_.layers()))
    return std::move(of_groups.front());
  std::vector<KvPlanes> planes;
  for (int layer = 0; layer < shapes_.layers(); ++layer) {
    const KvLayerPlace place = shapes_.place(layer);
    planes.push_back(
        place.group < 0
            ? KvPlanes{}
            : of_groups[static_cast<size_t>(place.group)][static_cast<size_t>(place.index)]);
  }
  return planes;
}

}  // namespace spillway
