// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/dtype.h"
#include "switchyard/error.h"
#include "switchyard/layout.h"
#include "switchyard/log.h"
#include "switchyard/tensor.h"
#include "switchyard/version.h"

#include "core/aligned_buffer.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/enum_names.h"
#include "core/even_parts.h"
#include "core/format_ranks.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/random.h"
#include "core/settings.h"
#include "core/text.h"
#include "support/errors.h"

namespace switchyard {
namespace {

TEST(ErrorTest, CarriesCodeAndSentence) {
  try {
    fail(Errc::kTimeout, "combine: no answer from rank {}", 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_STREQ(error.what(), "combine: no answer from rank 3");
    EXPECT_STREQ(name_of(error.code()), "timeout");
  }
}

TEST(ErrorTest, MessageIsOneShortLine) {
  const Error error(Errc::kAborted, "first\nsecond\x7f" + std::string(5000, 'a'));
  const std::string text = error.what();
  EXPECT_THAT(text, ::testing::StartsWith("first?second?aaa"));
  EXPECT_THAT(text, ::testing::EndsWith("aaa..."));
  EXPECT_LT(text.size(), 4096u);
}

TEST(TextTest, ShortenNeverCutsACharacter) {
  EXPECT_EQ(shorten("abc", 3), "abc");
  EXPECT_EQ(shorten("abcd", 3), "abc...");
  EXPECT_EQ(shorten("a\u00e4b", 2), "a...");
  EXPECT_EQ(quote("a\tb"), "\"a?b\"");
}

TEST(TextTest, ListsOfNumbersStayShort) {
  EXPECT_EQ(format_ranges({}), "none");
  EXPECT_EQ(format_ranges(std::vector<std::int32_t>{0, 2, 4, 5, 6}), "0, 2, 4-6");
  std::vector<std::int32_t> odd;
  for (std::int32_t i = 1; i < 5000; i += 2) odd.push_back(i);
  EXPECT_THAT(format_ranges(odd), ::testing::EndsWith("29, 31 and 2484 more"));
  EXPECT_EQ(format_ranks(std::vector<std::int32_t>{3}), "rank 3");
  EXPECT_EQ(format_ranks(std::vector<std::int32_t>{0, 1, 5}), "ranks 0-1, 5");
}

TEST(DeadlineTest, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const Deadline deadline = Deadline::after_ms(100'000);
  std::int64_t now = now_ns();
  for (int stop = 0; stop < Deadline::kMaxStops - 1; ++stop) {
    now += 50 * kSecond;
    EXPECT_GT(deadline.remaining_ns(now), 80 * kSecond);
  }
  const std::int64_t left = deadline.remaining_ns(now);
  now += Deadline::kStoppedNs / 2;  // a long slice
  EXPECT_EQ(deadline.remaining_ns(now), left - Deadline::kStoppedNs / 2);
  now += 50 * kSecond;
  EXPECT_GT(deadline.remaining_ns(now), 20 * kSecond);  // the last stop that is forgiven
  EXPECT_EQ(deadline.remaining_ns(now + 200 * kSecond), 0);
}

TEST(MemoryTest, MoreThanThereIsIsRefusedWithNumbers) {
  ASSERT_GT(available_memory_bytes(), std::size_t{1} << 20);
  require_memory("test", 1 << 20);
  const auto expect_refusal = [](const char* phrase, auto&& call) {
    test::expect_error(Errc::kOutOfMemory, phrase, call);
    test::expect_error(Errc::kOutOfMemory, "MiB available", call);
  };
  constexpr std::size_t kTooMuch = std::size_t{1} << 50;
  expect_refusal("test needs 1073741824.0 MiB", [] { require_memory("test", kTooMuch); });
  expect_refusal("buffer needs 1073741824.0 MiB", [] { const AlignedBuffer buffer(kTooMuch); });
}

TEST(BytesTest, OverflowIsAnError) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_EQ(checked_mul<std::int64_t>(3, 4), 12);
  EXPECT_THROW(checked_mul(kHuge, std::int64_t{3}), Error);
  EXPECT_THROW(checked_add(kHuge, kHuge + 2), Error);
  EXPECT_EQ(align_up(130, 128), 256);
  EXPECT_EQ(cdiv(7, 2), 4);
}

TEST(EvenPartsTest, FirstPartsHaveOneMore) {
  const auto sizes = [](std::int64_t n, std::int64_t num_parts) {
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i < num_parts; ++i) {
      found.push_back(part_begin(n, num_parts, i + 1) - part_begin(n, num_parts, i));
    }
    return found;
  };
  EXPECT_EQ(sizes(11, 4), (std::vector<std::int64_t>{3, 3, 3, 2}));
  EXPECT_EQ(sizes(2, 3), (std::vector<std::int64_t>{1, 1, 0}));
  EXPECT_EQ(sizes(0, 2), (std::vector<std::int64_t>{0, 0}));
  for (const std::int64_t n : {0, 1, 5, 4097}) {
    EXPECT_EQ(part_begin(n, 7, 0), 0);
    EXPECT_EQ(part_begin(n, 7, 7), n);
  }
}

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kI64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("bf17"), std::nullopt);
  EXPECT_EQ(bits_of(DType::kE2M1), 4);
  EXPECT_EQ(bits_of(DType::kBF16), 16);
}

TEST(EnumNamesTest, ValuesAndNamesFromOutsideAreChecked) {
  EXPECT_EQ(enum_from_name<Layout>("by_rank"), Layout::kByRank);
  EXPECT_STREQ(enum_name(Layout::kByRank), "by_rank");
  EXPECT_STREQ(enum_name(static_cast<Layout>(5)), "unknown");
  EXPECT_EQ(must_be("error ", kEnumTable<Overflow>.names),
            "\"error \", must be error or drop; nearest: \"error\"");
  test::expect_error(Errc::kInvalidArgument,
                     "f: reduce is 3, must be per_expert, per_rank or per_host",
                     [] { require_enum("f", static_cast<Reduce>(3)); });
}

TEST(TensorTest, KnowsShapeStridesAndBytes) {
  const float data[6] = {};
  const TensorView view = TensorView::of(data, {2, 3});
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.stride(0), 3);
  EXPECT_EQ(view.num_bytes(), 24u);
  EXPECT_EQ(view.describe(), "f32 [2, 3]");
  EXPECT_FALSE(TensorView().has_value());
  EXPECT_EQ(TensorView(data, DType::kE2M1, {3, 3}).num_bytes(), 5u);

  const TensorView column(data, DType::kF32, {3, 2}, {1, 3});
  EXPECT_FALSE(column.is_contiguous());
  // Libraries differ in the strides of arrays without elements.
  EXPECT_TRUE(TensorView(data, DType::kF32, {0, 2}, {0, 0}).is_contiguous());
  EXPECT_TRUE(TensorView(data, DType::kF32, {2, 0}, {7, 9}).is_contiguous());
  EXPECT_THAT(column.describe(), ::testing::HasSubstr("strides [1, 3]"));
}

TEST(TensorTest, RefusesImpossibleShapes) {
  EXPECT_THROW(TensorView(nullptr, DType::kF32, {-1}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::kF32, {1LL << 40, 1LL << 40}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::kF32, {1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST(TensorTest, OwnedMemoryIsZeroAndAligned) {
  for (const std::int64_t size : {0, 1, 77, 3'000'000}) {
    const Tensor tensor(DType::kI8, {size});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0u);
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(tensor.as<std::int8_t>()[i], 0);
  }
}

TEST(SettingsTest, ProgramWinsOverEnvironmentWinsOverDefault) {
  ::unsetenv("SWITCHYARD_TIMEOUT_MS");
  EXPECT_EQ(setting("SWITCHYARD_TIMEOUT_MS").origin, SettingOrigin::kDefault);
  ::setenv("SWITCHYARD_TIMEOUT_MS", "30s", 1);
  EXPECT_EQ(setting("SWITCHYARD_TIMEOUT_MS").origin, SettingOrigin::kEnvironment);
  test::expect_invalid("is \"30s\", must be a whole number",
                       [] { setting_integer("SWITCHYARD_TIMEOUT_MS", 1, 86'400'000); });
  set_setting("SWITCHYARD_TIMEOUT_MS", "500");
  EXPECT_EQ(setting_integer("SWITCHYARD_TIMEOUT_MS", 1, 86'400'000), 500);
  set_setting("SWITCHYARD_SECRET", "sesame");
  EXPECT_EQ(setting("SWITCHYARD_SECRET").text, "sesame");
  EXPECT_EQ(shown_setting("SWITCHYARD_SECRET").text, "(set)");
  set_setting("SWITCHYARD_SECRET", "");
  EXPECT_EQ(shown_setting("SWITCHYARD_SECRET").text, "");
  EXPECT_THROW(setting("SWITCHYARD_NO_SUCH"), Error);
}

TEST(LogTest, CallbackGetsRankAndText) {
  std::vector<std::string> lines;
  set_log_callback([&](LogLevel, int rank, std::string_view subsystem, std::string_view text) {
    lines.push_back(fmt::format("{} {} {}", rank, subsystem, text));
  });
  set_log_level(LogLevel::kInfo);
  set_log_rank(2);
  log(LogLevel::kInfo, "test", "seen {}", 1);
  log(LogLevel::kDebug, "test", "dropped");
  set_log_rank(-1);
  set_log_callback({});
  EXPECT_THAT(lines, ::testing::ElementsAre("2 test seen 1"));
}

TEST(RandomTest, ValueDependsOnSeedAndCounterOnly) {
  EXPECT_EQ(random_bits(1, 5), random_bits(1, 5));
  EXPECT_NE(random_bits(1, 5), random_bits(2, 5));
  double sum = 0;
  double squares = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const double x = random_normal(7, i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 20'000, 0.0, 0.03);
  EXPECT_NEAR(squares / 20'000, 1.0, 0.05);
}

TEST(VersionTest, MatchesTheHeader) {
  EXPECT_STREQ(version(), "0.1.0");
  EXPECT_THAT(build_summary(), ::testing::StartsWith("0.1.0 ("));
}

TEST(DeadlineTest, Expires) {
  EXPECT_TRUE(Deadline::after_ms(0).expired());
  EXPECT_FALSE(Deadline::after_ms(10'000).expired());
  EXPECT_GT(Deadline::after_ms(10'000).remaining_ms(), 9'000);
}

}  // namespace
}  // namespace switchyard
