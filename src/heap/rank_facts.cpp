// SPDX-License-Identifier: Apache-2.0

#include "heap/rank_facts.h"

#include <algorithm>
#include <sstream>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr std::array<HeapKind, kNumHeapKinds> kAllKinds{HeapKind::kSameProcess, HeapKind::kNccl,
                                                        HeapKind::kVmm, HeapKind::kIpc};

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

bool is_one_process(const std::vector<RankFacts>& ranks) {
  return std::ranges::all_of(ranks,
                             [&](const RankFacts& one) { return one.process == ranks[0].process; });
}

// The first two ranks for which `is_bad` holds, as a text with `why`; empty: none.
template <typename IsBad>
std::string first_pair(const std::vector<RankFacts>& ranks, IsBad is_bad, const char* why) {
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t b = a + 1; b < ranks.size(); ++b) {
      if (is_bad(ranks[a], ranks[b])) return fmt::format("ranks {} and {} {}", a, b, why);
    }
  }
  return {};
}

std::string obstacle_of_pairs(const std::vector<RankFacts>& ranks, HeapKind kind) {
  const auto shares_process = [](const RankFacts& a, const RankFacts& b) {
    return a.process == b.process;
  };
  const auto differs = [&](const RankFacts& a, const RankFacts& b) {
    return !shares_process(a, b);
  };
  const auto shares_gpu = [](const RankFacts& a, const RankFacts& b) { return a.gpu == b.gpu; };
  switch (kind) {
    case HeapKind::kSameProcess: return first_pair(ranks, differs, "are of two processes");
    case HeapKind::kVmm:
    case HeapKind::kIpc: return first_pair(ranks, shares_process, "are threads of one process");
    case HeapKind::kNccl: return first_pair(ranks, shares_gpu, "share a GPU");
  }
  return {};
}

// Why the group cannot use `kind`; empty if it can.
std::string obstacle(const std::vector<RankFacts>& ranks, HeapKind kind) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& own = ranks[rank].obstacles[static_cast<std::size_t>(kind)];
    if (!own.empty()) return fmt::format("rank {}: {}", rank, own);
  }
  return obstacle_of_pairs(ranks, kind);
}

std::vector<HeapKind> preferred(const std::vector<RankFacts>& ranks) {
  const std::string& wanted = ranks[0].wanted;
  if (wanted == "auto") {
    if (is_one_process(ranks)) return {HeapKind::kSameProcess};
    return {HeapKind::kVmm, HeapKind::kIpc};
  }
  for (const HeapKind kind : kAllKinds) {
    if (wanted == name_of(kind)) return {kind};
  }
  fail(Errc::kInvalidArgument,
       "device window: heap \"{}\", must be auto, same_process, vmm, ipc or nccl (SWITCHYARD_HEAP)",
       wanted);
}

}  // namespace

const char* name_of(HeapKind kind) noexcept {
  switch (kind) {
    case HeapKind::kSameProcess: return "same_process";
    case HeapKind::kNccl: return "nccl";
    case HeapKind::kVmm: return "vmm";
    case HeapKind::kIpc: return "ipc";
  }
  return "unknown";
}

std::string RankFacts::text() const {
  std::string lines =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n", one_line(wanted), bytes, host, process, device, gpu);
  for (const std::string& why : obstacles) lines += one_line(why) + "\n";
  return lines;
}

RankFacts RankFacts::parse(const std::string& text) {
  std::istringstream lines(text);
  RankFacts facts;
  std::string number;
  std::getline(lines, facts.wanted);
  lines >> facts.bytes;
  std::getline(lines, number);  // the rest of that line
  std::getline(lines, facts.host);
  std::getline(lines, facts.process);
  lines >> facts.device;
  std::getline(lines, number);
  std::getline(lines, facts.gpu);
  for (std::string& why : facts.obstacles) std::getline(lines, why);
  require(!lines.fail(), Errc::kSystem,
          "device window: the store has a text that no rank wrote: \"{}\"", text.substr(0, 64));
  return facts;
}

int num_ranks_on_gpu(const std::vector<RankFacts>& ranks, int rank) {
  const std::string& gpu = ranks[static_cast<std::size_t>(rank)].gpu;
  return static_cast<int>(
      std::ranges::count_if(ranks, [&](const RankFacts& one) { return one.gpu == gpu; }));
}

void require_equal_facts(const std::vector<RankFacts>& ranks) {
  const RankFacts& first = ranks[0];
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const RankFacts& other = ranks[rank];
    require(
        other.wanted == first.wanted, Errc::kInvalidArgument,
        "device window: rank {} selects heap {}, but rank 0 {}; every rank must select the same",
        rank, other.wanted, first.wanted);
    require(other.bytes == first.bytes, Errc::kInvalidArgument,
            "device window: rank {} asks for {} bytes, but rank 0 for {}; sizes must be equal",
            rank, other.bytes, first.bytes);
    require(
        other.host == first.host, Errc::kNotAvailable,
        "device window: ranks 0 and {} run on different hosts; GPUs address each other's memory "
        "within one host only",
        rank);
  }
}

std::vector<HeapKind> heaps_to_try(const std::vector<RankFacts>& ranks) {
  std::vector<HeapKind> usable;
  std::string reasons;
  for (const HeapKind kind : preferred(ranks)) {
    const std::string why = obstacle(ranks, kind);
    if (why.empty()) {
      usable.push_back(kind);
    } else {
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name_of(kind), why);
    }
  }
  require(!usable.empty(), Errc::kNotAvailable,
          "device window: no way to share GPU memory between the {} ranks: {}", ranks.size(),
          reasons);
  return usable;
}

void require_reach(const std::vector<RankFacts>& ranks, const std::vector<ReachRow>& rows) {
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    require(rows[rank].size() == ranks.size(), Errc::kSystem,
            "device window: rank {} reports {} GPUs, must report {}", rank, rows[rank].size(),
            ranks.size());
    for (std::size_t peer = 0; peer < ranks.size(); ++peer) {
      require(rows[rank][peer] != '0', Errc::kNotAvailable,
              "device window: GPU {} of rank {} cannot address the memory of GPU {} of rank {}; "
              "these GPUs need NVLink, or PCIe with peer-to-peer on (see nvidia-smi topo -p2p r)",
              ranks[rank].device, rank, ranks[peer].device, peer);
    }
  }
}

}  // namespace switchyard
