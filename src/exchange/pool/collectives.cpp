// SPDX-License-Identifier: Apache-2.0

#include "switchyard/collectives.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/live.h"
#include "exchange/pool/payload_exchange.h"

namespace switchyard {
namespace {

std::int64_t sum_of(std::span<const std::int64_t> sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum = checked_add(sum, size);
  return sum;
}

}  // namespace

class CollectivesImpl {
 public:
  CollectivesImpl(const Group& group, std::int64_t max_rows_per_rank,
                  const ExchangeOptions& options)
      : pool(group, options), max_rows(max_rows_per_rank) {
    require(max_rows >= 0, Errc::kInvalidArgument,
            "collectives: max_rows_per_rank is {}, must not be negative", max_rows);
  }

  std::size_t rank() const { return static_cast<std::size_t>(pool.group().rank()); }
  std::vector<std::int64_t> checked_sizes(const char* function, std::span<const std::int64_t> sizes,
                                          std::int64_t if_equal) const;
  PayloadRouting routing_of(std::span<const std::int64_t> sizes) const;

  ExchangePool pool;
  std::int64_t max_rows;
};

std::vector<std::int64_t> CollectivesImpl::checked_sizes(const char* function,
                                                         std::span<const std::int64_t> sizes,
                                                         std::int64_t if_equal) const {
  const auto num_ranks = static_cast<std::size_t>(pool.group().size());
  std::vector<std::int64_t> checked(sizes.begin(), sizes.end());
  if (sizes.empty()) checked.assign(num_ranks, if_equal);
  require(checked.size() == num_ranks, Errc::kInvalidArgument, "{}: {} sizes, must be {}", function,
          checked.size(), num_ranks);
  for (std::size_t r = 0; r < checked.size(); ++r) {
    require(checked[r] >= 0 && checked[r] <= max_rows, Errc::kInvalidArgument,
            "{}: sizes[{}] is {}, must be from 0 to max_rows_per_rank, {}", function, r, checked[r],
            max_rows);
  }
  return checked;
}

// There are no experts: every row goes to every rank.
PayloadRouting CollectivesImpl::routing_of(std::span<const std::int64_t> sizes) const {
  PayloadRouting routing;
  routing.config.layout = Layout::kAllGather;
  routing.config.max_tokens_per_rank = max_rows;
  routing.num_tokens = sizes[rank()];
  // On CPUs the sizes are compared when rows have arrived, with a better message.
  if (pool.is_on_gpu()) routing.max_tokens = *std::max_element(sizes.begin(), sizes.end());
  return routing;
}

std::vector<Tensor> Collectives::all_gatherv(const std::vector<TensorView>& tensors, Stream stream,
                                             std::span<const std::int64_t> sizes) {
  CollectivesImpl& own = live(impl_, "Collectives");
  constexpr const char* kName = "all_gatherv";
  own.pool.check_call(kName, stream, {});
  require(!tensors.empty() && tensors.front().num_dims() >= 1, Errc::kInvalidArgument,
          "{}: {} tensors, must be at least one, with rows", kName, tensors.size());
  const std::int64_t num_rows = tensors.front().shape(0);
  const std::vector<std::int64_t> wanted = own.checked_sizes(kName, sizes, num_rows);
  require(num_rows == wanted[own.rank()], Errc::kInvalidArgument,
          "{}: {} rows, but sizes[{}] is {}; must be the same", kName, num_rows, own.rank(),
          wanted[own.rank()]);
  const ReceivedPayloads got =
      dispatch_payloads(kName, own.pool, own.routing_of(wanted), tensors, stream);
  if (got.received.host.has_value()) {
    const auto& arrived = got.received.host->rows_per_rank;
    require(std::equal(wanted.begin(), wanted.end(), arrived.begin(), arrived.end()),
            Errc::kInvalidArgument,
            "{}: {} rows arrived, sizes add up to {}; every rank must pass the same sizes, its own "
            "rows among them",
            kName, got.received.host->num_rows, sum_of(wanted));
  }
  std::vector<Tensor> gathered;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    gathered.push_back(
        copy_payload(own.pool.results(), got.received, i, tensors[i], stream, sum_of(wanted)));
  }
  return gathered;
}

Tensor Collectives::reduce_scatterv(const TensorView& x, Stream stream,
                                    std::span<const std::int64_t> sizes) {
  CollectivesImpl& own = live(impl_, "Collectives");
  constexpr const char* kName = "reduce_scatterv";
  own.pool.check_call(kName, stream, {{"x", x}});
  require(x.num_dims() >= 1 && x.is_contiguous(), Errc::kInvalidArgument,
          "{}: x is {}, must have rows and be contiguous", kName, x);
  const std::int64_t num_ranks = own.pool.group().size();
  require(!sizes.empty() || x.shape(0) % num_ranks == 0, Errc::kInvalidArgument,
          "{}: {} rows over {} ranks, must divide; pass sizes", kName, x.shape(0), num_ranks);
  const std::vector<std::int64_t> wanted = own.checked_sizes(kName, sizes, x.shape(0) / num_ranks);
  require(x.shape(0) == sum_of(wanted), Errc::kInvalidArgument,
          "{}: x has {} rows, but sizes add up to {}; must be the same", kName, x.shape(0),
          sum_of(wanted));
  std::vector<std::int64_t> shape{wanted[own.rank()]};
  std::int64_t row = 1;
  for (int d = 1; d < x.num_dims(); ++d) {
    shape.push_back(x.shape(d));
    row *= x.shape(d);
  }
  Tensor output = own.pool.results().make(x.dtype(), shape);
  combine_rows(own.pool, own.routing_of(wanted), reshaped(x, x.dtype(), {x.shape(0), row}),
               reshaped(output, x.dtype(), {wanted[own.rank()], row}), stream, wanted);
  return output;
}

Collectives::Collectives(const Group& group, std::int64_t max_rows_per_rank,
                         const ExchangeOptions& options)
    : impl_(std::make_unique<CollectivesImpl>(group, max_rows_per_rank, options)) {}
Collectives::Collectives(Collectives&&) noexcept = default;
Collectives& Collectives::operator=(Collectives&&) noexcept = default;
Collectives::~Collectives() = default;
void Collectives::close(bool waits_for_peers) {
  live(impl_, "Collectives").pool.close(waits_for_peers);
}

Tensor Collectives::all_gatherv(const TensorView& x, Stream stream,
                                std::span<const std::int64_t> sizes) {
  return std::move(all_gatherv(std::vector{x}, stream, sizes).front());
}

}  // namespace switchyard
