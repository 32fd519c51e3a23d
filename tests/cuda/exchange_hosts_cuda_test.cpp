// SPDX-License-Identifier: Apache-2.0
//
// The exchange between GPUs of several hosts returns the bits of the exchange between CPUs.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "core/settings.h"
#include "engine/meeting.h"
#include "engine/shm_engine.h"
#include "exchange/push/push_exchange.h"
#include "exchange_rank.h"
#include "exchange_run.h"
#include "on_hosts.h"
#include "support/errors.h"
#include "support/processes.h"

namespace switchyard {
namespace {

using namespace test;

constexpr auto kPerRank = Reduce::kPerRank;
constexpr Layout kLayouts[] = {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                               Layout::kByRank, Layout::kAllGather};
const std::vector<std::int64_t> kTokens{37, 5, 0, 1, 20};

// The ranks of `group` for CPUs: over shared memory, as its hosts are of one machine, and with the
// same map of hosts, by which per_host sums.
Group make_cpu_group(const Group& group) {
  const Control& control = group.control();
  GroupSpec spec{.rank = group.rank(), .size = group.size(), .timeout_ms = group.timeout_ms()};
  spec.store = control.store_part("cpus/");
  for (int rank = 0; rank < group.size(); ++rank) spec.hosts.push_back(control.host_of(rank));
  MeetingPlace place;
  place.is_for_meeting_only = true;
  const std::string host = setting("SWITCHYARD_HOST_ID").text;
  set_setting("SWITCHYARD_HOST_ID", "");  // engine shm is of ranks that say the same
  Group cpus(make_shm_engine(spec, std::make_unique<Meeting>(spec, std::move(place))));
  set_setting("SWITCHYARD_HOST_ID", host);
  return cpus;
}

struct Suite {
  std::string name;
  Hosts hosts;
  std::vector<Case> cases;
};

std::vector<Suite> suites_of(const Hosts& hosts);

class SuiteTest : public HostsTest, public ::testing::WithParamInterface<Hosts> {};

// Needs no GPU.
TEST(CpuGroupTest, HasTheHostsOfTheGpus) {
  run_processes(
      4,
      [](const Group& group) {
        const Group cpus = make_cpu_group(group);
        EXPECT_EQ(cpus.rank(), group.rank());
        EXPECT_EQ(cpus.engine_name(), std::string("shm"));
        for (int rank = 0; rank < group.size(); ++rank) {
          EXPECT_EQ(cpus.control().host_of(rank), group.control().host_of(rank));
        }
        Exchange(cpus, config_of(Layout::kExpanded, schemes::kNone, Reduce::kPerHost)).check();
      },
      options_of(kThreeAndOne));
}

// Needs no GPU: it is found before one is asked for, and before ranks wait in NCCL.
TEST(HostsAgreementTest, SettingsOfHostsMustBeAlike) {
  using Change = std::function<void(ExchangeConfig&, ExchangeOptions&)>;
  const auto disagree = [](const Change& change, const std::string& words) {
    run_processes(
        4,
        [&](const Group& group) {
          ExchangeConfig config = config_of(Layout::kExpanded, schemes::kNone, kPerRank);
          ExchangeOptions options{.device = Device::cuda(0)};
          if (group.control().host_of(group.rank()) == 1) change(config, options);
          expect_invalid(words, [&] { PushExchange(group, config, options); });
        },
        options_of(kTwoTimesTwo));
  };
  disagree([](auto& c, auto&) { c.max_tokens_per_rank = 99; },
           "rank 1 has max_tokens_per_rank 99, but");
  disagree([](auto& c, auto&) { c.reduce = Reduce::kPerHost; }, "rank 1 has reduce per_host, but");
  disagree([](auto& c, auto&) { c.payload_bytes = {8}; },
           "rank 1 has payload_bytes 8, but rank 0 has");
  disagree([](auto&, auto& o) { o.host_capacity = 5; }, "rank 1 has host_capacity 5, but rank 0");
  disagree([](auto&, auto& o) { o.exact_messages = true; }, "rank 1 has exact_messages true, but");
}

// All suites in the same processes: CUDA starts once.
TEST_P(SuiteTest, EqualsTheCpuExchange) {
  run_on_hosts(GetParam(), [&](const Group& group) {
    const Group cpus = make_cpu_group(group);
    for (const Suite& suite : suites_of(GetParam())) {
      SCOPED_TRACE(suite.name);
      for (Case c : suite.cases) {
        SCOPED_TRACE(c.name);
        c.num_ranks = group.size();
        ExchangeRun(cpus, group, c).run();
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

Case case_of(const char* name, const ExchangeConfig& config, double none_share = 0.1) {
  return {name, 0, config, kTokens, none_share};
}

std::vector<Case> simple_cases(Layout layout) {
  return {case_of("plain", config_of(layout, schemes::kNone, kPerRank)),
          case_of("fp8", config_of(layout, schemes::kFp8Block, kPerRank, 1027)),
          case_of("per_host", config_of(layout, schemes::kNone, Reduce::kPerHost, 520))};
}

std::vector<Case> layout_cases(Layout layout, int num_ranks) {
  std::vector<Case> cases = simple_cases(layout);
  Case ones = case_of("all_ones", config_of(layout, schemes::kNone, kPerRank));
  ones.all_ones = true;
  ones.splits_phases = true;
  cases.push_back(ones);
  Case payloads = case_of("payloads", config_of(layout, schemes::kFp8Block, kPerRank, 256));
  payloads.config.payload_bytes = {16, 2, 614};
  cases.push_back(payloads);
  Case again = case_of("again", config_of(layout, schemes::kFp8Token, kPerRank, 264));
  again.goes_again = true;
  again.returns_weights = true;
  again.config.max_in_flight = 3;
  cases.push_back(again);
  Case drop = case_of("drop", config_of(layout, schemes::kFp8Block, kPerRank, 256));
  drop.config.capacity = 9;
  drop.config.overflow = Overflow::kDrop;
  drop.goes_again = true;
  cases.push_back(drop);
  Case back = case_of("return_fp8", config_of(layout, schemes::kNone, kPerRank, 700));
  back.config.combine_scheme = schemes::kFp8Block;
  back.splits_phases = true;
  cases.push_back(back);
  Case sums = case_of("per_host_again", config_of(layout, schemes::kFp8Block, Reduce::kPerHost));
  sums.goes_again = true;
  sums.returns_weights = true;
  sums.splits_phases = true;
  sums.config.max_in_flight = 2;
  cases.push_back(sums);
  Case own = case_of("experts_per_rank", config_of(layout, schemes::kInt8Token, kPerRank, 512));
  own.config.experts_per_rank.assign(static_cast<std::size_t>(num_ranks), 0);
  own.config.experts_per_rank[0] = 5;
  own.config.experts_per_rank.back() += 7;
  cases.push_back(own);
  return cases;
}

std::vector<Case> scheme_cases() {
  std::vector<Case> cases;
  for (const char* name : {"fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token",
                           "fp8_tensor", "int8_token", "int8_tensor", "int8_block", "nvfp4",
                           "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"}) {
    for (const std::int64_t hidden : {1024, 612}) {
      cases.push_back(
          case_of(name, config_of(Layout::kExpanded, *scheme_from_name(name), kPerRank, hidden)));
      cases.back().num_calls = 2;
    }
  }
  return cases;
}

// Tokens of every dtype, also on the wire, and tokens that are codes already.
std::vector<Case> token_cases() {
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    c.num_calls = 2;
    cases.push_back(c);
    c.config.hidden = 612;
    c.exact_messages = true;
    c.none_share = 0.8;
    cases.push_back(c);
  };
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    QuantScheme same = schemes::kNone;
    same.dtype = dtype;
    for (const QuantScheme& scheme : {same, schemes::kFp8Block}) {
      Case c = case_of(name_of(dtype), config_of(Layout::kExpanded, scheme, kPerRank));
      c.token_dtype = dtype;
      add(c);
    }
    Case gathered = case_of("gathered", config_of(Layout::kAllGather, same, Reduce::kPerHost));
    gathered.token_dtype = dtype;
    gathered.goes_again = true;
    cases.push_back(gathered);
  }
  for (const char* name : {"fp8_block", "fp8_ue8m0_deepep", "fp8_token", "fp8_tensor", "int8_block",
                           "nvfp4", "mxfp8"}) {
    Case c = case_of(name, config_of(Layout::kCompact, *scheme_from_name(name), kPerRank));
    c.gives_codes = true;
    add(c);
  }
  Case again = case_of("codes_again", config_of(Layout::kBatched, schemes::kFp8Block, kPerRank));
  again.gives_codes = true;
  again.goes_again = true;
  again.splits_phases = true;
  again.config.max_in_flight = 2;
  again.config.payload_bytes = {614};
  cases.push_back(again);
  return cases;
}

std::vector<Case> return_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const Reduce reduce : {kPerRank, Reduce::kPerExpert, Reduce::kPerHost}) {
      Case c = case_of(name_of(dtype), config_of(Layout::kExpanded, schemes::kNone, reduce, 520));
      c.config.combine_scheme.dtype = dtype;
      c.config.num_topk = 9;
      c.result_dtype = dtype;
      c.has_tiny = true;
      cases.push_back(c);
    }
  }
  for (const QuantScheme& wire : {schemes::kFp8Ue8m0, schemes::kInt8Block, schemes::kMxfp8}) {
    Case c = case_of("codes", config_of(Layout::kBatched, schemes::kNone, Reduce::kPerExpert));
    c.config.combine_scheme = wire;
    c.all_ones = true;
    c.returns_weights = true;
    cases.push_back(c);
    cases.push_back(
        case_of("codes_of_hosts", config_of(Layout::kCompact, schemes::kNone, Reduce::kPerHost)));
    cases.back().config.combine_scheme = wire;
  }
  return cases;
}

// Few CTAs with much to return stream it, in a kernel that can also sum.
std::vector<Case> few_ctas_cases() {
  std::vector<Case> cases;
  for (const Reduce reduce : {kPerRank, Reduce::kPerHost}) {
    Case c = case_of(name_of(reduce), config_of(Layout::kExpanded, schemes::kNone, reduce, 1024));
    c.num_tokens = {512, 700};
    c.config.max_tokens_per_rank = 700;
    c.num_ctas = 8;
    cases.push_back(c);
    c.splits_phases = true;
    cases.push_back(c);
  }
  return cases;
}

// Messages of what crosses only. Many choices are none, so that less than half does.
std::vector<Case> packed_cases() {
  std::vector<Case> cases;
  for (const Layout layout : kLayouts) {
    for (Case c : simple_cases(layout)) {
      c.none_share = 0.8;
      c.exact_messages = true;
      cases.push_back(c);
    }
  }
  Case payloads = case_of("payloads", config_of(Layout::kCompact, schemes::kFp8Block, kPerRank));
  payloads.config.payload_bytes = {16, 614};
  payloads.none_share = 0.8;
  payloads.exact_messages = true;
  payloads.splits_phases = true;
  cases.push_back(payloads);
  Case again = case_of("again", config_of(Layout::kExpanded, schemes::kInt8Token, kPerRank), 0.8);
  again.goes_again = true;
  again.returns_weights = true;
  again.config.max_in_flight = 3;
  again.exact_messages = true;
  cases.push_back(again);
  again.exact_messages = false;
  again.host_capacity = 32;
  cases.push_back(again);
  Case drop = case_of("drop", config_of(Layout::kBatched, schemes::kFp8Block, kPerRank), 0.8);
  drop.config.capacity = 2;
  drop.config.overflow = Overflow::kDrop;
  drop.exact_messages = true;
  cases.push_back(drop);
  Case many =
      case_of("many_tokens", config_of(Layout::kExpanded, schemes::kFp8Block, kPerRank), 0.8);
  many.num_tokens = {1500, 3, 700};
  many.config.max_tokens_per_rank = 1500;
  many.exact_messages = true;
  cases.push_back(many);
  many.exact_messages = false;
  many.host_capacity = 1300;
  cases.push_back(many);
  return cases;
}

// Messages of several blocks, of which the last ones of exact messages have no rows.
std::vector<Case> long_cases() {
  std::vector<Case> cases;
  Case c = case_of("long", config_of(Layout::kExpanded, schemes::kNone, kPerRank, 4096));
  c.num_tokens = {1500, 1300, 700, 900};
  c.config.max_tokens_per_rank = 1500;
  cases.push_back(c);
  c.splits_phases = true;
  c.returns_weights = true;
  c.config.scheme = schemes::kFp8Block;
  c.config.payload_bytes = {614};
  cases.push_back(c);
  c.exact_messages = true;
  c.none_share = 0.8;
  cases.push_back(c);
  c.exact_messages = false;
  c.host_capacity = 1300;
  cases.push_back(c);
  c.config.reduce = Reduce::kPerHost;
  cases.push_back(c);
  return cases;
}

std::vector<Suite> suites() {
  std::vector<Suite> suites;
  for (const Layout layout : kLayouts) {
    for (const Hosts& hosts : {kTwo, kTwoTimesTwo}) {
      suites.push_back({std::string(name_of(layout)) + "_" + text_of(hosts), hosts,
                        layout_cases(layout, static_cast<int>(hosts.size()))});
    }
    for (const Hosts& hosts : {kThreeAndOne, kThree}) {
      suites.push_back(
          {std::string(name_of(layout)) + "_" + text_of(hosts), hosts, simple_cases(layout)});
    }
  }
  suites.push_back({"schemes_01", kTwo, scheme_cases()});
  suites.push_back({"tokens_01", kTwo, token_cases()});
  suites.push_back({"tokens_201", kThree, token_cases()});
  suites.push_back({"returns_0101", kTwoTimesTwo, return_cases()});
  Case many =
      case_of("many_tokens", config_of(Layout::kExpanded, schemes::kFp8Block, kPerRank, 1152));
  many.num_tokens = {1500, 3, 700};
  many.config.max_tokens_per_rank = 1500;
  suites.push_back({"many_tokens_01", kTwo, {many}});
  for (const Hosts& hosts : {kThree, kTwoTimesTwo, kThreeAndOne}) {
    suites.push_back({"packed_" + text_of(hosts), hosts, packed_cases()});
  }
  for (const Hosts& hosts : {kTwo, kTwoTimesTwo, kThreeAndOne}) {
    suites.push_back({"long_" + text_of(hosts), hosts, long_cases()});
  }
  suites.push_back({"few_ctas_01", kTwo, few_ctas_cases()});
  return suites;
}

std::vector<Suite> suites_of(const Hosts& hosts) {
  std::vector<Suite> all = suites();
  std::erase_if(all, [&](const Suite& suite) { return suite.hosts != hosts; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SuiteTest, testing::Values(kTwo, kTwoTimesTwo, kThreeAndOne, kThree),
                         [](const auto& each) { return text_of(each.param); });

// Whatever the routing is: half of the tokens have no expert on the other host.
TEST_F(HostsTest, EveryTokenCrossesToEachHostOnce) {
  for (const Hosts& hosts : {kTwo, kThree}) {
    run_on_hosts(hosts, [&](const Group& group) {
      const ExchangeConfig config = fault_config();
      ExchangeRank rank(group, config);
      const Dispatched got = rank.dispatch();
      const WireBytes bytes = rank.exchange().wire_bytes(got.handle);
      rank.combine(got);
      rank.finish();
      const std::int64_t num_crossings = config.max_tokens_per_rank * (group.size() - 1);
      const std::int64_t row_bytes = 2 * config.hidden;
      const std::int64_t beside = 1024 * (group.size() - 1);  // ids, weights, gaps
      EXPECT_GE(bytes.dispatch, num_crossings * row_bytes);
      EXPECT_LE(bytes.dispatch, num_crossings * row_bytes + beside);
      EXPECT_GE(bytes.combine, num_crossings * row_bytes);
      EXPECT_LE(bytes.combine, num_crossings * row_bytes + beside);
    });
  }
}

// Every token goes to one rank, so half of the tokens cross.
constexpr std::int64_t kNumCrossing = 8;

TEST_F(HostsTest, PackedMessagesCarryWhatCrosses) {
  const ExchangeOptions of_capacity{.host_capacity = kNumCrossing};
  const ExchangeOptions exact{.exact_messages = true};
  for (const ExchangeOptions& options : {of_capacity, exact}) {
    run_on_hosts(kTwo, [&](const Group& group) {
      const ExchangeConfig config = fault_config();
      ExchangeRank rank(group, config, options);
      const Dispatched got = rank.dispatch();
      const WireBytes bytes = rank.exchange().wire_bytes(got.handle);
      rank.combine(got);
      rank.finish();
      const std::int64_t row_bytes = 2 * config.hidden;
      EXPECT_GE(bytes.dispatch, kNumCrossing * row_bytes);
      EXPECT_LE(bytes.dispatch, kNumCrossing * row_bytes + 1024);
      EXPECT_GE(bytes.combine, kNumCrossing * row_bytes);
      EXPECT_LE(bytes.combine, kNumCrossing * row_bytes + 1024);
    });
  }
}

// Of rank 1 alone; rank 0 has nothing for it.
TEST_F(HostsTest, MoreThanAMessageHasRoomForIsAnError) {
  for (const bool is_exact : {false, true}) {
    run_on_hosts(kTwo, [&](const Group& group) {
      const ExchangeConfig config = fault_config();
      ExchangeRank rank(group, config,
                        {.host_capacity = kNumCrossing - 1, .exact_messages = is_exact});
      if (group.rank() == 0) {
        rank.set_ids([&](std::int64_t, std::int64_t k) { return k % (config.num_experts / 2); });
      }
      group.barrier();
      const Error error = error_of([&] {
        rank.pair();
        rank.finish();
      });
      EXPECT_EQ(error.code(), Errc::kCapacityExceeded);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("8 tokens of rank 1 go to host 0"));
    });
  }
}

TEST_F(HostsTest, ExactCombineIsNotCapturedAlone) {
  run_on_hosts(kTwo, [](const Group& group) {
    ExchangeRank rank(group, fault_config(), {.exact_messages = true});
    const Dispatched got = rank.dispatch();
    Error error(Errc::kInternal, "none");
    rank.capture(group, [&] { error = error_of([&] { rank.combine(got); }); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("capture both or neither"));
  });
}

// Replays give what calls give, whatever the tokens are at that time. SWITCHYARD_TEST_REPLAYS asks
// for more of them.
TEST_F(HostsTest, GraphsReplay) {
  const char* const asked = std::getenv("SWITCHYARD_TEST_REPLAYS");
  const int num_replays = asked == nullptr ? 200 : std::atoi(asked);
  constexpr int kInputs = 3;
  const auto options_of = [](Layout layout) {
    if (layout != Layout::kCompact) return ExchangeOptions();
    return ExchangeOptions{.host_capacity = kNumCrossing, .exact_messages = true};
  };
  const auto config_of_graph = [](Layout layout) {
    ExchangeConfig config = fault_config(layout);
    if (layout != Layout::kExpanded) return config;
    config.hidden = 4096;  // messages of three blocks
    config.max_tokens_per_rank = 1100;
    return config;
  };
  for (const Layout layout :
       {Layout::kBatched, Layout::kCompact, Layout::kAllGather, Layout::kExpanded}) {
    SCOPED_TRACE(name_of(layout));
    run_on_hosts(kTwo, [&](const Group& group) {
      ExchangeRank rank(group, config_of_graph(layout), options_of(layout));
      const auto set_tokens = [&](int input) {
        cuda::check_cuda(cudaMemset(rank.tokens().data(), 0x3C + input, rank.tokens().num_bytes()),
                         "tokens");
        cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "tokens");
      };
      const auto output = [&] {
        const Downloaded bytes(rank.output(), rank.stream());
        return std::vector<std::byte>(bytes.bytes().begin(), bytes.bytes().end());
      };
      std::vector<std::vector<std::byte>> want;
      for (int input = 0; input < kInputs; ++input) {
        set_tokens(input);
        rank.pair();
        rank.finish();
        want.push_back(output());
      }
      ASSERT_NE(want[0], want[1]);
      group.barrier();
      rank.capture(group);
      for (int i = 0; i < num_replays; ++i) {
        set_tokens(i % kInputs);
        rank.replay();
        rank.finish();
        ASSERT_EQ(output(), want[static_cast<std::size_t>(i % kInputs)]) << "replay " << i;
      }
    });
  }
}

}  // namespace
}  // namespace switchyard
