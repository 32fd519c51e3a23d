// SPDX-License-Identifier: Apache-2.0

#include "transport/env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/fail.h"

namespace switchyard {
namespace {

struct Source {
  const char* name;
  const char* rank;
  const char* size;        // null: not stated
  const char* needed;      // the source counts only when this is set too; null: always
  const char* local_rank;  // null: not stated
  const char* local_size;  // null: not stated
  std::array<const char*, 4> job;
};

// The first source that is set provides the names for messages and, if it has one, the job id.
constexpr std::array<Source, 6> kSources{{
    {"switchyard launcher",
     "RANK",
     "WORLD_SIZE",
     "SWITCHYARD_CONTROL_FD",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"SWITCHYARD_STORE"}},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     nullptr,
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"PMIx", "PMIX_RANK", nullptr, nullptr, nullptr, nullptr, {"PMIX_NAMESPACE"}},
    {"PMI", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID"}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
}};

// What one source claims.
struct Claim {
  const Source* source = nullptr;
  int rank = -1;
  int size = -1;
};

const char* value_of(const Lookup& lookup, const char* name) {
  const char* text = name == nullptr ? nullptr : lookup(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

int number_of(const Lookup& lookup, const char* name) {
  const char* text = value_of(lookup, name);
  if (text == nullptr) return -1;
  constexpr int kMax = 1'000'000;
  int value = -1;
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(text, text + view.size(), value);
  require(error == std::errc{} && end == text + view.size() && value >= 0 && value <= kMax,
          Errc::kInvalidArgument, "group: {} is \"{}\", must be a whole number from 0 to {}", name,
          view, kMax);
  return value;
}

std::vector<Claim> read_claims(const Lookup& lookup) {
  std::vector<Claim> claims;
  for (const Source& source : kSources) {
    if (value_of(lookup, source.rank) == nullptr) continue;
    if (source.needed != nullptr && value_of(lookup, source.needed) == nullptr) continue;
    claims.push_back({&source, number_of(lookup, source.rank), number_of(lookup, source.size)});
  }
  return claims;
}

// torchrun's own variable: the claims of what started torchrun itself, once per host, are of no
// rank. Our launcher's processes do not inherit it.
void keep_torchrun_alone(std::vector<Claim>& claims, const Lookup& lookup) {
  if (value_of(lookup, "TORCHELASTIC_RUN_ID") == nullptr) return;
  const auto is_torchrun = [](const Claim& claim) { return claim.source == &kSources[1]; };
  const auto found = std::find_if(claims.begin(), claims.end(), is_torchrun);
  if (found != claims.end() && found->size >= 0) claims = {*found};
}

// A single-process step may start a launcher of its own; the inner launcher wins. Claims without a
// size that repeat the outer rank (PMIX_RANK) are dropped together with the outer claim.
void drop_single_steps(std::vector<Claim>& claims) {
  const auto is_single = [](const Claim& claim) { return claim.size == 1; };
  const auto outer = std::find_if(claims.begin(), claims.end(), is_single);
  const bool has_more =
      std::any_of(claims.begin(), claims.end(), [](const Claim& claim) { return claim.size > 1; });
  if (outer == claims.end() || !has_more) return;
  const int rank = outer->rank;
  std::erase_if(claims, [&](const Claim& claim) {
    return is_single(claim) || (claim.size < 0 && claim.rank == rank);
  });
}

void require_one_answer(const std::vector<Claim>& claims) {
  for (const Claim& first : claims) {
    for (const Claim& other : claims) {
      require(first.rank == other.rank, Errc::kInvalidArgument,
              "group: {} is {}, but {} is {}; two launchers disagree, unset the variables of one",
              first.source->rank, first.rank, other.source->rank, other.rank);
      require(first.size == other.size || first.size < 0 || other.size < 0, Errc::kInvalidArgument,
              "group: {} is {}, but {} is {}; two launchers disagree, unset the variables of one",
              first.size < 0 ? "" : first.source->size, first.size,
              other.size < 0 ? "" : other.source->size, other.size);
    }
  }
}

std::string job_id_of(const Source& source, const Lookup& lookup) {
  std::string id;
  for (const char* name : source.job) {
    const char* text = value_of(lookup, name);
    if (text == nullptr) continue;
    if (!id.empty()) id += '/';
    id += text;
  }
  return id;
}

}  // namespace

RankInfo discover_ranks(const Lookup& lookup) {
  std::vector<Claim> claims = read_claims(lookup);
  if (claims.empty()) {
    require(number_of(lookup, "WORLD_SIZE") <= 1, Errc::kInvalidArgument,
            "group: WORLD_SIZE is {}, but RANK is not set; set both or neither",
            number_of(lookup, "WORLD_SIZE"));
    return {};
  }
  keep_torchrun_alone(claims, lookup);
  drop_single_steps(claims);
  require_one_answer(claims);
  RankInfo info;
  info.source = claims[0].source->name;
  info.is_ours = claims[0].source == kSources.data();
  info.rank = claims[0].rank;
  info.size = -1;
  for (const Claim& claim : claims) {
    if (info.size < 0) info.size = claim.size;
    if (info.local_rank < 0) info.local_rank = number_of(lookup, claim.source->local_rank);
    if (info.local_size < 0) info.local_size = number_of(lookup, claim.source->local_size);
    if (info.job_id.empty()) info.job_id = job_id_of(*claim.source, lookup);
  }
  info.is_spread = (info.local_size >= 0 && info.local_size < info.size) ||
                   (info.local_size < 0 && number_of(lookup, "SLURM_STEP_NUM_NODES") > 1);
  const char* rank_name = claims[0].source->rank;
  require(info.size >= 0, Errc::kInvalidArgument,
          "group: {} is {}, but nothing says how many ranks there are; set RANK and WORLD_SIZE",
          rank_name, info.rank);
  require(info.size >= 1 && info.size <= kMaxRanks, Errc::kInvalidArgument,
          "group: {} names {} ranks, must name from 1 to {}", info.source, info.size, kMaxRanks);
  require(info.rank < info.size, Errc::kInvalidArgument,
          "group: {} is {}, but there are {} ranks; must be from 0 to {}", rank_name, info.rank,
          info.size, info.size - 1);
  return info;
}

RankInfo discover_ranks() {
  return discover_ranks([](const char* name) { return std::getenv(name); });
}

std::span<const char* const> rank_variables() {
  static constexpr std::array<const char*, 20> kNames{"RANK",
                                                      "WORLD_SIZE",
                                                      "LOCAL_RANK",
                                                      "LOCAL_WORLD_SIZE",
                                                      "MASTER_ADDR",
                                                      "MASTER_PORT",
                                                      "TORCHELASTIC_RUN_ID",
                                                      "OMPI_COMM_WORLD_RANK",
                                                      "OMPI_COMM_WORLD_SIZE",
                                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                      "PMIX_RANK",
                                                      "PMIX_NAMESPACE",
                                                      "PMI_RANK",
                                                      "PMI_SIZE",
                                                      "SLURM_PROCID",
                                                      "SLURM_STEP_NUM_TASKS",
                                                      "SWITCHYARD_STORE",
                                                      "SWITCHYARD_SECRET",
                                                      "SWITCHYARD_CONTROL_FD"};
  return kNames;
}

std::string meeting_address(const RankInfo& info) {
  require(!info.job_id.empty(), Errc::kInvalidArgument,
          "group: the variables of {} name {} ranks, but no job; set SWITCHYARD_STORE to the same "
          "address on every rank, for example unix:@my-job",
          info.source, info.size);
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : info.job_id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  return fmt::format("unix:@switchyard-{}-{:016x}", geteuid(), hash);
}

}  // namespace switchyard
