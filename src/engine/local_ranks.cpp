// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "switchyard/group.h"

#include "core/fail.h"
#include "core/log.h"
#include "engine/describe_group.h"
#include "engine/group_options.h"
#include "engine/local_engine.h"

namespace switchyard {
namespace {

// How the ranks of run_local_ranks ended.
struct Outcome {
  std::exception_ptr error;
  int order = 0;              // of the errors, by time
  bool is_secondary = false;  // the cause lies with another rank
};

void run_rank(std::shared_ptr<Engine> engine, const std::function<void(const Group&)>& body,
              std::atomic<int>& num_errors, Outcome& outcome) {
  const int rank = engine->control().rank();
  set_log_rank(rank);
  const auto record = [&](const char* what) {
    outcome.error = std::current_exception();
    outcome.is_secondary = engine->control().has_seen_abort();
    outcome.order = num_errors.fetch_add(1);
    engine->control().abort(Errc::kAborted, rank,
                            fmt::format("it ended with the error \"{}\"", what));
  };
  try {
    log_group(*engine, "threads");
    body(Group(engine));
  } catch (const std::exception& error) {
    record(error.what());
  } catch (...) {
    record("unknown exception");
  }
}

// The first error that is not an echo of another rank's.
std::exception_ptr first_cause(const std::vector<Outcome>& outcomes) {
  const Outcome* first = nullptr;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.error) continue;
    const auto key = [](const Outcome& o) { return std::pair(o.is_secondary, o.order); };
    if (first == nullptr || key(outcome) < key(*first)) first = &outcome;
  }
  return first == nullptr ? nullptr : first->error;
}

}  // namespace

void run_engines(std::vector<std::shared_ptr<Engine>> engines,
                 const std::function<void(const Group&)>& body) {
  std::vector<Outcome> outcomes(engines.size());
  std::atomic<int> num_errors = 0;
  {
    const std::vector<std::weak_ptr<Engine>> ranks(engines.begin(), engines.end());
    std::vector<std::jthread> threads;
    try {
      for (std::size_t rank = 0; rank < engines.size(); ++rank) {
        threads.emplace_back(run_rank, std::move(engines[rank]), std::cref(body),
                             std::ref(num_errors), std::ref(outcomes[rank]));
      }
    } catch (const std::system_error& error) {
      const int culprit = static_cast<int>(threads.size());
      for (const std::weak_ptr<Engine>& rank : ranks) {
        if (const auto engine = rank.lock())
          engine->control().abort(Errc::kAborted, culprit, "no thread");
      }
      fail(Errc::kSystem, "run_local_ranks: thread {} of {}: {}", threads.size(), engines.size(),
           error.what());
    }
  }
  if (const std::exception_ptr error = first_cause(outcomes)) std::rethrow_exception(error);
}

void run_local_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                     const GroupOptions& options) {
  const bool sends_messages = options.engine == kLocalMessagesEngine;
  require(sends_messages || options.engine.empty() || options.engine == "auto" ||
              options.engine == kLocalEngine,
          Errc::kInvalidArgument, "run_local_ranks: engine \"{}\", but threads need \"local\"",
          options.engine);
  require(body != nullptr, Errc::kInvalidArgument,
          "run_local_ranks: the body is empty, must be the work of one rank");
  run_engines(make_local_engines(num_ranks, timeout_of(options),
                                 sends_messages ? kLocalMessagesEngine : kLocalEngine),
              body);
}

}  // namespace switchyard
