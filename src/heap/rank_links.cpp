// SPDX-License-Identifier: Apache-2.0

#include "heap/rank_links.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "core/fail.h"
#include "core/format_ranks.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "heap/gather_or_fail.h"
#include "heap/heap.h"
#include "heap/nccl_api.h"
#include "heap/nccl_call.h"

namespace switchyard {
namespace {

constexpr int kSpinsPerLook = 64;
constexpr std::size_t kFirstMessageBytes = 16;
// To tell communicators to end takes no time, unless a thread of NCCL's must come to a stop.
constexpr std::int64_t kTellMs = 1000;
// What the end of links waits for their memory, which a graph may keep for ever.
constexpr std::int64_t kReclaimMs = 1000;

// The member of communicator `link` on a host.
int member_of(const HostMap& map, int link, int host) {
  const std::vector<int>& ranks = map.ranks_of(host);
  return ranks[static_cast<std::size_t>(link) % ranks.size()];
}

int num_links(const HostMap& map) { return static_cast<int>(map.max_host_size()); }

// The ids of the communicators whose member on host 0 this rank is, one after another, as bytes.
// The leading "-" keeps the text from being empty and from looking like a failure.
std::string ids_text(const HostMap& map, int rank) {
  const NcclCalls& api = nccl_calls();
  std::string text = "-";
  for (int link = 0; link < num_links(map); ++link) {
    if (member_of(map, link, 0) != rank) continue;
    ncclUniqueId id{};
    check_nccl(api.get_unique_id(&id), "ncclGetUniqueId");
    text.append(id.internal, sizeof(id.internal));
  }
  return text;
}

ncclUniqueId id_of(const std::vector<std::string>& texts, const HostMap& map, int link) {
  const std::string& text = texts[static_cast<std::size_t>(member_of(map, link, 0))];
  ncclUniqueId id{};
  const std::size_t nth = static_cast<std::size_t>(link) / map.ranks_of(0).size();
  const std::size_t at = 1 + nth * sizeof(id.internal);
  require(text.size() >= at + sizeof(id.internal), Errc::kSystem,
          "nccl: ids of {} bytes, must be {} or more", text.size(), at + sizeof(id.internal));
  std::memcpy(id.internal, text.data() + at, sizeof(id.internal));
  return id;
}

// NCCL connects only ranks with the same version of it; one without would leave the others waiting.
void require_same_nccl(const std::vector<std::string>& versions) {
  for (std::size_t rank = 1; rank < versions.size(); ++rank) {
    require(versions[rank] == versions[0], Errc::kNotAvailable,
            "exchange: rank {} has NCCL {}, but rank 0 has {}; ranks of several hosts need the "
            "same libnccl.so.2",
            rank, versions[rank], versions[0]);
  }
}

// Needs no peer, unlike ncclCommDestroy. In a group each communicator is told to end at once, and
// all are freed at its end: one that is freed waits for its kernels, which may be in a stream
// behind those of another. That end also waits until no graph has calls of theirs.
void abort_all(const std::vector<ncclComm_t>& comms, std::atomic<bool>& are_told) {
  const NcclCalls& api = nccl_calls();
  api.group_start();
  for (ncclComm_t comm : comms) {
    if (comm != nullptr) api.comm_abort(comm);
  }
  are_told.store(true, std::memory_order_release);
  api.group_end();
}

// Until `is_there()`, or for `ms`.
template <typename IsThere>
void wait_at_most(std::int64_t ms, const IsThere& is_there) {
  const Deadline deadline = Deadline::after_ms(ms);
  while (!is_there() && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class NcclLinks final : public RankLinks {
 public:
  NcclLinks(Control& control, const HostMap& map, int number)
      : control_(control),
        number_(number),
        map_(map),
        peers_(map.linked_with(control.rank())),
        comms_(static_cast<std::size_t>(num_links(map))) {}
  ~NcclLinks() override {
    abort();
    if (aborter_) {
      wait_at_most(kReclaimMs, [&] { return aborter_->is_done(); });
    }
  }

  void join(const std::vector<std::string>& texts);
  void connect();
  /// Among the links of the group, in the order in which they were made: equal on all ranks.
  int number() const { return number_; }
  bool is_idle();

  void exchange(const std::vector<LinkMessage>& sent, const std::vector<LinkMessage>& received,
                const WaitSite& site, cudaStream_t stream) override;
  std::string failure() noexcept override;
  void abort() noexcept override;

 private:
  ncclComm_t link_of(const LinkMessage& message) const {
    return comms_[static_cast<std::size_t>(map_.local_of(message.source))];
  }
  int number_of(int peer) const { return map_.host_of(peer); }
  void enqueue(const std::vector<LinkMessage>& sent, const std::vector<LinkMessage>& received,
               cudaStream_t stream);
  ncclResult_t state() const;
  bool is_ready(const WaitSite& site);
  template <typename IsDone>
  void await(const WaitSite& site, const IsDone& is_done);
  [[noreturn]] void fail_by(const WaitSite& site, const std::string& what);

  Control& control_;
  int number_;
  HostMap map_;
  std::vector<std::int32_t> peers_;  ///< of messages
  std::mutex mutex_;                 // guards the two below: an abort frees communicators
  std::vector<ncclComm_t> comms_;
  bool is_aborted_ = false;
  std::mutex abort_mutex_;  // guards the one below
  std::optional<NcclThread> aborter_;
};

// Of calls in a group, which say that they are not done yet.
void check_begun(ncclResult_t result, const char* what) {
  if (result != ncclInProgress) check_nccl(result, what);
}

void NcclLinks::join(const std::vector<std::string>& texts) {
  const NcclCalls& api = nccl_calls();
  const int host = map_.host_of(control_.rank());
  std::vector<ncclUniqueId> ids;
  for (int link = 0; link < num_links(map_); ++link) ids.push_back(id_of(texts, map_, link));
  {
    const std::lock_guard lock(mutex_);
    check_nccl(api.group_start(), "ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    for (int link = 0; link < num_links(map_); ++link) {
      if (result != ncclSuccess && result != ncclInProgress) break;
      if (member_of(map_, link, host) != control_.rank()) continue;
      const auto at = static_cast<std::size_t>(link);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      config.maxCTAs = kMaxMessageCtas;
      result = api.comm_init_rank_config(&comms_[at], map_.num_hosts(), ids[at], host, &config);
    }
    const ncclResult_t end = api.group_end();  // also after an error: this thread's group is open
    check_begun(result, "ncclCommInitRankConfig");
    check_begun(end, "ncclGroupEnd");
  }
  const WaitSite site{Phase::kSetup, 0, peers_[0]};
  await(site, [&] { return is_ready(site); });
}

// NCCL connects two ranks when the first message goes between them, and takes memory for it: here,
// because later a stream may be captured.
void NcclLinks::connect() {
  const std::vector<LinkMessage> out = messages_of_source(map_, control_.rank());
  const std::vector<LinkMessage> back = messages_of_forwarder(map_, control_.rank());
  const cuda::DeviceBuffer memory(2 * (out.size() + back.size()) * kFirstMessageBytes);
  std::byte* next = memory.data();
  const auto with_memory = [&](std::vector<LinkMessage> messages) {
    for (LinkMessage& message : messages) {
      message.data = next;
      message.num_bytes = kFirstMessageBytes;
      next += kFirstMessageBytes;
    }
    return messages;
  };
  const WaitSite site{Phase::kSetup, 0, peers_[0]};
  const std::vector<LinkMessage> sent = with_memory(out);
  const std::vector<LinkMessage> received = with_memory(back);
  const cuda::OwnedStream stream;
  try {
    exchange(sent, received, site, stream.get());
    exchange(received, sent, site, stream.get());
    await(site, [&] {
      const cudaError_t state = cudaStreamQuery(stream.get());
      if (state != cudaErrorNotReady) cuda::check_cuda(state, "nccl: first messages");
      return state == cudaSuccess;
    });
  } catch (...) {
    abort();  // the memory is freed when the GPU is done, and messages may wait for a lost rank
    throw;
  }
}

void NcclLinks::enqueue(const std::vector<LinkMessage>& sent,
                        const std::vector<LinkMessage>& received, cudaStream_t stream) {
  const NcclCalls& api = nccl_calls();
  check_nccl(api.group_start(), "ncclGroupStart");
  ncclResult_t result = ncclSuccess;
  const auto is_good = [&] { return result == ncclSuccess || result == ncclInProgress; };
  for (const LinkMessage& message : sent) {
    if (!is_good()) break;
    if (message.num_bytes == 0) continue;
    result = api.send(message.data, message.num_bytes, ncclInt8, number_of(message.peer),
                      link_of(message), stream);
  }
  for (const LinkMessage& message : received) {
    if (!is_good()) break;
    if (message.num_bytes == 0) continue;
    result = api.receive(message.data, message.num_bytes, ncclInt8, number_of(message.peer),
                         link_of(message), stream);
  }
  const ncclResult_t end = api.group_end();
  check_begun(result, "ncclSend");
  check_begun(end, "ncclGroupEnd");
}

void NcclLinks::exchange(const std::vector<LinkMessage>& sent,
                         const std::vector<LinkMessage>& received, const WaitSite& site,
                         cudaStream_t stream) {
  if (sent.empty() && received.empty()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (!is_aborted_) enqueue(sent, received, stream);
  } catch (const Error& error) {
    fail_by(site, error.what());
  }
  await(site, [&] { return is_ready(site); });
}

// Of all communicators: an error, or not done yet, or success.
ncclResult_t NcclLinks::state() const {
  ncclResult_t worst = ncclSuccess;
  for (ncclComm_t comm : comms_) {
    if (comm == nullptr) continue;
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = nccl_calls().comm_get_async_error(comm, &result);
    if (asked != ncclSuccess) return asked;
    if (result != ncclSuccess && result != ncclInProgress) return result;
    if (result == ncclInProgress) worst = result;
  }
  return worst;
}

bool NcclLinks::is_idle() {
  const std::lock_guard lock(mutex_);
  return !is_aborted_ && state() == ncclSuccess;
}

// NCCL's threads have done what a call left to them.
bool NcclLinks::is_ready(const WaitSite& site) {
  ncclResult_t result = ncclInProgress;
  {
    const std::lock_guard lock(mutex_);
    if (!is_aborted_) result = state();
  }
  if (result != ncclSuccess && result != ncclInProgress) {
    fail_by(site, fmt::format("NCCL says {}", nccl_calls().get_error_string(result)));
  }
  return result == ncclSuccess;
}

// Spins, unlike Control::wait: nothing wakes a sleeper.
template <typename IsDone>
void NcclLinks::await(const WaitSite& site, const IsDone& is_done) {
  const Deadline deadline = Deadline::after_ms(control_.timeout_ms());
  constexpr std::int64_t kLookEveryNs = std::int64_t{kSliceMs} * 1'000'000;
  std::int64_t next_look_ns = now_ns() + kLookEveryNs;
  for (int spin = 1; !is_done(); ++spin) {
    if (spin % kSpinsPerLook != 0) continue;
    if (now_ns() >= next_look_ns) {
      control_.look_for_lost_peers();
      next_look_ns = now_ns() + kLookEveryNs;
    }
    control_.check_alive(site);
    if (deadline.expired()) {
      control_.abort(
          Errc::kTimeout, peers_.size() == 1 ? peers_[0] : -1,
          fmt::format("rank {} waited {:.1f} s for NCCL, to exchange messages with {}, in {}",
                      control_.rank(), static_cast<double>(control_.timeout_ms()) * 1e-3,
                      format_ranks(peers_), name_of(site.phase)));
      control_.check_alive(site);
    }
    sched_yield();
  }
}

// What NCCL saw may be that a rank is gone, which control knows better.
void NcclLinks::fail_by(const WaitSite& site, const std::string& what) {
  constexpr std::int64_t kGraceMs = 1000;
  const Deadline grace = Deadline::after_ms(kGraceMs);
  while (!grace.expired()) {
    control_.look_for_lost_peers();
    control_.check_alive(site);
    sched_yield();
  }
  const std::string text = fmt::format("rank {} exchanges messages with {}: {}", control_.rank(),
                                       format_ranks(peers_), what);
  control_.abort(Errc::kSystem, control_.rank(), text);
  fail(Errc::kSystem, "{}: {} (rank {} of {}, call {})", name_of(site.phase), text, control_.rank(),
       control_.size(), site.call);
}

std::string NcclLinks::failure() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (is_aborted_) return {};
    const ncclResult_t result = state();
    if (result == ncclSuccess || result == ncclInProgress) return {};
    return fmt::format("NCCL says {}", nccl_calls().get_error_string(result));
  } catch (const std::exception&) {  // no memory for the text
    return {};
  }
}

// On a thread of its own, which uses no CUDA before communicators are told: CUDA may be waiting for
// their kernels. Who calls exchange() meanwhile sees `is_aborted_`, and waits for no lock.
void NcclLinks::abort() noexcept {
  const std::lock_guard aborting(abort_mutex_);
  std::vector<ncclComm_t> comms;
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted_) return;
    is_aborted_ = true;
    comms.swap(comms_);
  }
  try {
    const auto are_told = std::make_shared<std::atomic<bool>>(false);
    aborter_.emplace([comms, are_told] { abort_all(comms, *are_told); });
    wait_at_most(kTellMs, [&] { return are_told->load(std::memory_order_acquire); });
  } catch (const std::exception&) {  // no thread or no memory for it
    std::atomic<bool> are_told = false;
    abort_all(comms, are_told);
  }
}

// The links of a group that no exchange uses.
struct KeptLinks {
  std::mutex mutex;  // guards the two below
  int num_made = 0;
  std::vector<std::shared_ptr<NcclLinks>> free;
};

// What a rank tells of itself: its NCCL, and the numbers of the links that it has kept.
struct LinkOffer {
  static constexpr char kSeparator = ' ';

  std::string version;
  std::set<int> kept;

  std::string text() const {
    std::string text = version;
    for (const int number : kept) text += kSeparator + std::to_string(number);
    return text;
  }
  static LinkOffer parse(const std::string& text) {
    std::istringstream words(text);
    LinkOffer offer;
    words >> offer.version;
    for (int number = 0; words >> number;) offer.kept.insert(number);
    return offer;
  }
};

LinkOffer own_offer(KeptLinks& kept) {
  LinkOffer offer{nccl_version_text(nccl_link_calls().version), {}};
  const std::lock_guard lock(kept.mutex);
  for (const auto& links : kept.free) offer.kept.insert(links->number());
  return offer;
}

// The smallest number that all ranks offer; the same on each. Null: there is none.
std::shared_ptr<NcclLinks> take_kept(KeptLinks& kept, const std::vector<LinkOffer>& offers) {
  const std::lock_guard lock(kept.mutex);
  for (const int number : offers[0].kept) {
    const auto has_it = [&](const LinkOffer& offer) { return offer.kept.count(number) != 0; };
    if (!std::all_of(offers.begin(), offers.end(), has_it)) continue;
    const auto is_it = [&](const auto& links) { return links->number() == number; };
    const auto found = std::find_if(kept.free.begin(), kept.free.end(), is_it);
    std::shared_ptr<NcclLinks> links = std::move(*found);
    kept.free.erase(found);
    return links;
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<RankLinks> make_rank_links(Control& control, const HostMap& map) {
  KeptLinks& kept = control.part<KeptLinks>();
  std::vector<LinkOffer> offers;
  std::vector<std::string> versions;
  for (const std::string& text : gather_or_fail(control, {Phase::kExchange, "NCCL version"},
                                                [&] { return own_offer(kept).text(); })) {
    offers.push_back(LinkOffer::parse(text));
    versions.push_back(offers.back().version);
  }
  require_same_nccl(versions);
  if (std::shared_ptr<NcclLinks> links = take_kept(kept, offers)) return links;

  turn_nvls_off();
  const std::vector<std::string> texts = gather_or_fail(
      control, {Phase::kExchange, "NCCL ids"}, [&] { return ids_text(map, control.rank()); });
  int number = 0;
  {
    const std::lock_guard lock(kept.mutex);
    number = kept.num_made++;
  }
  auto links = std::make_shared<NcclLinks>(control, map, number);
  gather_or_fail(control, {Phase::kExchange, "NCCL"}, [&] {
    links->join(texts);
    links->connect();
    return std::string();
  });
  return links;
}

// Another kind of links than NCCL's is none of ours.
void keep_rank_links(Control& control, std::shared_ptr<RankLinks> links) noexcept {
  auto own = std::dynamic_pointer_cast<NcclLinks>(std::move(links));
  if (own == nullptr || own.use_count() > 1 || control.is_aborted() || !own->is_idle()) return;
  try {
    KeptLinks& kept = control.part<KeptLinks>();
    const std::lock_guard lock(kept.mutex);
    kept.free.push_back(std::move(own));
  } catch (const std::bad_alloc&) {  // they end here
  }
}

}  // namespace switchyard
