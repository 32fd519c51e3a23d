// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/wait_failure.h"

#include "core/fail.h"
#include "cuda/exchange/exchange_args.h"

namespace switchyard {
namespace {

const char* name_of(cuda::WaitPlace place) {
  switch (place) {
    case cuda::WaitPlace::kAnnouncement: return "announcement";
    case cuda::WaitPlace::kRow:
    case cuda::WaitPlace::kReturnedRow: return "row";
    case cuda::WaitPlace::kInput: break;
  }
  return "input";
}

WaitFailureText bad_id(const cuda::WaitRecord& record, int rank, std::int64_t num_experts) {
  WaitFailureText text{Errc::kInvalidArgument, Errc::kAborted, true, rank, "dispatch", ""};
  const bool is_expert = record.seen >= 0 && record.seen < num_experts;
  const std::string id =
      record.seen == cuda::kIdBeyond32Bits ? "out of range" : fmt::format("{}", record.seen);
  text.what = fmt::format("topk_ids[{}, {}] is {}, ", record.token, record.expected, id);
  text.what += is_expert ? "which is twice in its token; layout batched has room for it once"
                         : fmt::format("must be -1 or an expert from 0 to {}", num_experts - 1);
  return text;
}

}  // namespace

std::string mode_text(std::uint32_t mode) {
  return fmt::format("max_tokens {} and routing_only {}", mode & ~cuda::kRoutingOnly,
                     (mode & cuda::kRoutingOnly) != 0);
}

WaitSite site_of(const cuda::WaitRecord& record) {
  switch (static_cast<cuda::WaitPlace>(record.place)) {
    case cuda::WaitPlace::kInput: return {Phase::kDispatchSend, record.call, -1};
    case cuda::WaitPlace::kReturnedRow: return {Phase::kCombineReceive, record.call, record.peer};
    case cuda::WaitPlace::kAnnouncement:
    case cuda::WaitPlace::kRow: break;
  }
  return {Phase::kDispatchReceive, record.call, record.peer};
}

WaitFailureText describe(const cuda::WaitRecord& record, int rank, std::int64_t num_experts,
                         int between) {
  const WaitSite site = site_of(record);
  const char* function = site.phase == Phase::kCombineReceive ? "combine" : "dispatch";
  switch (static_cast<cuda::WaitFailure>(record.failure)) {
    case cuda::WaitFailure::kInvalidId: return bad_id(record, rank, num_experts);
    case cuda::WaitFailure::kCapacityExceeded:
      return {Errc::kCapacityExceeded,
              Errc::kCapacityExceeded,
              true,
              rank,
              function,
              fmt::format("local expert {} of rank {} was sent {} rows, its capacity is {}; raise "
                          "capacity",
                          record.token, rank, record.seen, record.expected)};
    case cuda::WaitFailure::kNoWeights:
      return {Errc::kInvalidArgument,
              Errc::kAborted,
              true,
              rank,
              function,
              fmt::format("returned_weights is requested, but rank {} passed no row_weights to "
                          "combine_send; pass them on every rank",
                          record.peer)};
    case cuda::WaitFailure::kDifferentMode: {
      const auto seen = static_cast<std::uint32_t>(record.seen);
      const auto expected = static_cast<std::uint32_t>(record.expected);
      return {Errc::kInvalidArgument,
              Errc::kInvalidArgument,
              true,
              record.peer,
              function,
              fmt::format("rank {} passed {}, rank {} {}; every rank must pass the same",
                          record.peer, mode_text(seen), rank, mode_text(expected))};
    }
    case cuda::WaitFailure::kCombinedTwice:
      return {Errc::kInvalidArgument,
              Errc::kAborted,
              true,
              rank,
              function,
              fmt::format("rank {} combined a dispatch twice, as a captured combine does that is "
                          "replayed without its dispatch; replay both",
                          rank)};
    case cuda::WaitFailure::kHostCapacityExceeded:
      return {
          Errc::kCapacityExceeded,
          Errc::kCapacityExceeded,
          true,
          record.peer,
          function,
          fmt::format("{} tokens of rank {} go to host {}, its messages have room for {}; raise "
                      "ExchangeOptions::host_capacity",
                      record.seen, record.peer, record.token, record.expected)};
    case cuda::WaitFailure::kAborted:
      return {
          Errc::kAborted, Errc::kAborted,
          false,          record.peer,
          function,       fmt::format("rank {} gave up waiting for rank {}", rank, record.peer)};
    case cuda::WaitFailure::kNone:
    case cuda::WaitFailure::kTimeout: break;
  }
  const std::string token = record.token < 0 ? "" : fmt::format(" {}", record.token);
  const std::string by = between < 0 ? "" : fmt::format(", which rank {} passes on,", between);
  return {Errc::kTimeout,
          Errc::kTimeout,
          false,
          between < 0 ? record.peer : between,
          function,
          fmt::format("rank {} had no {}{} from rank {}{} within {:.1f} s in {}", rank,
                      name_of(static_cast<cuda::WaitPlace>(record.place)), token, record.peer, by,
                      static_cast<double>(record.waited_ns) * 1e-9, name_of(site.phase))};
}

std::int64_t kernel_timeout_ms(std::int64_t asked_ms, std::int64_t group_ms, bool is_shared_gpu) {
  if (asked_ms > 0) return asked_ms;
  return group_ms * (is_shared_gpu ? kSharedGpuPatience : 1);
}

}  // namespace switchyard
