// SPDX-License-Identifier: Apache-2.0
//
// The baseline: the same de-duplicated bytes over MPI. Dispatch: ids by MPI_Allgather, rows packed
// by target rank and moved by MPI_Alltoallv, then the same placement. Combine: the same sums on the
// expert's rank, packed, MPI_Alltoallv, and the same sum on the owner. Plans come from the library,
// so that only the transport differs.

#include <mpi.h>
#include <span>

#include "core/fence.h"
#include "cpu/copy_rows.h"
#include "cpu/weigh_reduce.h"
#include "exchange_case.h"

namespace switchyard::bench {
namespace {

class MpiExchange {
 public:
  MpiExchange(const ExchangeCase& test, int rank)
      : test_(test),
        rank_(rank),
        ownership_{test.num_experts, test.num_ranks},
        row_bytes_(static_cast<std::size_t>(test.hidden) * 2),
        all_ids_(static_cast<std::size_t>(test.num_ranks * test.num_tokens * test.num_topk)) {
    const std::int64_t most = std::int64_t{test.num_ranks} * test.num_tokens;
    send_ = AlignedBuffer(static_cast<std::size_t>(most) * row_bytes_);
    receive_ = AlignedBuffer(static_cast<std::size_t>(most) * row_bytes_);
    rows_ = AlignedBuffer(static_cast<std::size_t>(most * test.num_topk) * row_bytes_);
    MPI_Type_contiguous(static_cast<int>(row_bytes_), MPI_BYTE, &row_type_);
    MPI_Type_commit(&row_type_);
  }
  ~MpiExchange() { MPI_Type_free(&row_type_); }

  void dispatch(const std::uint16_t* tokens, const std::vector<std::uint16_t>& ids) {
    const auto count = static_cast<int>(ids.size());
    MPI_Allgather(ids.data(), count, MPI_UINT16_T, all_ids_.data(), count, MPI_UINT16_T,
                  MPI_COMM_WORLD);
    std::vector<RankRouting> table;
    for (int r = 0; r < test_.num_ranks; ++r) {
      table.push_back(
          {test_.num_tokens, all_ids_.data() + static_cast<std::size_t>(r) * ids.size(), nullptr});
    }
    send_plan_.build(ownership_, test_.num_topk, Layout::kExpanded,
                     table[static_cast<std::size_t>(rank_)]);
    receive_plan_.build(rank_, ownership_, test_.num_topk, {}, table);
    std::vector<std::int64_t> next = first_row_to();
    for (std::int64_t t = 0; t < test_.num_tokens; ++t) {
      for (const TokenRank& r : send_plan_.ranks_of(t)) {
        const auto row = static_cast<std::size_t>(next[static_cast<std::size_t>(r.rank)]++);
        std::memcpy(send_.data() + row * row_bytes_, tokens + t * test_.hidden, row_bytes_);
      }
    }
    all_to_all(true);
    std::vector<std::byte*> places(static_cast<std::size_t>(test_.num_topk));
    for (std::size_t a = 0; a < receive_plan_.arrivals.size(); ++a) {
      const Arrival& arrival = receive_plan_.arrivals[a];
      for (std::int32_t i = 0; i < arrival.count; ++i) {
        places[static_cast<std::size_t>(i)] = row_of(arrival, i);
      }
      copy_row_to_many(receive_.data() + a * row_bytes_, places.data(), arrival.count, row_bytes_);
    }
    streaming_store_fence();
  }

  void combine(std::uint16_t* output) {
    const std::vector<float> weights(static_cast<std::size_t>(test_.num_topk), 0.125f);
    std::vector<const void*> terms(weights.size());
    for (std::size_t a = 0; a < receive_plan_.arrivals.size(); ++a) {
      const Arrival& arrival = receive_plan_.arrivals[a];
      for (std::int32_t i = 0; i < arrival.count; ++i)
        terms[static_cast<std::size_t>(i)] = row_of(arrival, i);
      weigh_reduce_row(terms.data(), DType::kBF16, weights.data(), arrival.count, test_.hidden,
                       receive_.data() + a * row_bytes_, DType::kBF16);
    }
    all_to_all(false);
    std::vector<std::int64_t> next = first_row_to();
    for (std::int64_t t = 0; t < test_.num_tokens; ++t) {
      int count = 0;
      for (const TokenRank& r : send_plan_.ranks_of(t)) {
        terms[static_cast<std::size_t>(count++)] =
            send_.data() +
            static_cast<std::size_t>(next[static_cast<std::size_t>(r.rank)]++) * row_bytes_;
      }
      weigh_reduce_row(terms.data(), DType::kBF16, nullptr, count, test_.hidden,
                       output + t * test_.hidden, DType::kBF16);
    }
  }

 private:
  std::byte* row_of(const Arrival& arrival, std::int32_t i) const {
    const Placement& p = receive_plan_.placements[static_cast<std::size_t>(arrival.first + i)];
    return rows_.data() + static_cast<std::size_t>(p.row) * row_bytes_;
  }

  // The first row for each rank among the outgoing rows.
  std::vector<std::int64_t> first_row_to() const {
    std::vector<std::int64_t> first(static_cast<std::size_t>(test_.num_ranks), 0);
    for (std::size_t r = 1; r < first.size(); ++r) {
      first[r] = first[r - 1] + send_plan_.num_tokens_to[r - 1];
    }
    return first;
  }

  // Sends rows of this rank's tokens and receives arrivals; combine moves them the other way.
  void all_to_all(bool is_dispatch) {
    const auto size = static_cast<std::size_t>(test_.num_ranks);
    std::vector<int> out(size), out_at(size), in(size), in_at(size);
    const std::vector<std::int64_t> first = first_row_to();
    for (std::size_t r = 0; r < size; ++r) {
      out[r] = static_cast<int>(send_plan_.num_tokens_to[r]);
      in[r] = static_cast<int>(receive_plan_.first_arrival[r + 1] - receive_plan_.first_arrival[r]);
      in_at[r] = static_cast<int>(receive_plan_.first_arrival[r]);
      out_at[r] = static_cast<int>(first[r]);
    }
    if (is_dispatch) {
      MPI_Alltoallv(send_.data(), out.data(), out_at.data(), row_type_, receive_.data(), in.data(),
                    in_at.data(), row_type_, MPI_COMM_WORLD);
    } else {
      MPI_Alltoallv(receive_.data(), in.data(), in_at.data(), row_type_, send_.data(), out.data(),
                    out_at.data(), row_type_, MPI_COMM_WORLD);
    }
  }

  const ExchangeCase& test_;
  int rank_;
  ExpertOwnership ownership_;
  std::size_t row_bytes_;
  MPI_Datatype row_type_{};
  std::vector<std::uint16_t> all_ids_;
  SendPlan send_plan_;
  ReceivePlan receive_plan_;
  AlignedBuffer send_;
  AlignedBuffer receive_;
  AlignedBuffer rows_;
};

template <typename Action>
double slowest_us(Action&& action) {
  MPI_Barrier(MPI_COMM_WORLD);
  const std::int64_t start = now_ns();
  action();
  const double own = static_cast<double>(now_ns() - start) * 1e-3;
  double slowest = 0;
  MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

void measure(const ExchangeCase& test, int rank) {
  MpiExchange exchange(test, rank);
  const Tensor tokens(DType::kBF16, {test.num_tokens, test.hidden});
  fill_tokens(tokens.as<std::uint16_t>(), tokens.view().num_elements());
  const Tensor output(DType::kBF16, {test.num_tokens, test.hidden});
  const std::vector<std::int32_t> wide = random_ids(test, rank);
  const std::vector<std::uint16_t> ids(wide.begin(), wide.end());
  std::vector<double> dispatch_us;
  std::vector<double> combine_us;
  constexpr int kWarmUps = 3;
  for (int run = -kWarmUps; run < test.num_runs; ++run) {
    const double dispatch = slowest_us([&] { exchange.dispatch(tokens.as<std::uint16_t>(), ids); });
    const double combine = slowest_us([&] { exchange.combine(output.as<std::uint16_t>()); });
    if (run < 0) continue;
    dispatch_us.push_back(dispatch);
    combine_us.push_back(combine);
  }
  if (rank != 0) return;
  print_times("dispatch", dispatch_us);
  print_times("combine", combine_us);
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc == 11) switchyard::bench::measure(switchyard::bench::ExchangeCase::parse(argv), rank);
  MPI_Finalize();
  return argc == 11 ? 0 : 2;
}
