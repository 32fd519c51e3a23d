// SPDX-License-Identifier: Apache-2.0

#include <sys/stat.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "support/errors.h"
#include "support/safetensors_image.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;

struct BadHeader {
  const char* name;
  std::string header;
  std::size_t data_bytes;
  const char* phrase;
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

const BadHeader kBadHeaders[] = {
    {"Empty", "", 4, "does not begin with '{'"},
    {"NotAnObject", "[1, 2]", 0, "does not begin with '{'"},
    {"LeadingSpace", " {}", 0, "does not begin with '{'"},
    {"CutShort", R"({"a":{"dtype")", 0, "is not JSON"},
    {"Garbage", "{\x01\x02}", 0, "is not JSON"},
    {"TextAfterTheObject", "{} x", 0, "is not JSON"},
    {"NotUtf8", "{\"\xff\xfe\":1}", 0, "is not JSON"},
    {"NulByte", std::string("{}\0{", 4), 0, "contains a NUL byte"},
    {"TensorIsANumber", R"({"a":1})", 0, "\"a\" is number 1, must be an object"},
    {"TensorIsNull", R"({"a":null})", 0, "\"a\" is null, must be an object"},
    {"TensorIsText", R"({"a":"x"})", 0, "\"a\" is text, must be an object"},
    {"TensorIsAnArray", R"({"a":[]})", 0, "\"a\" is an array, must be an object"},
    {"NameTwice", R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1})", 0,
     "has the tensor \"a\" twice"},
    {"MetadataTwice", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "has the metadata \"k\" twice"},
    {"MetadataNotText", R"({"__metadata__":{"k":1}})", 0, "metadata \"k\" holds number 1"},
    {"MetadataIsText", R"({"__metadata__":"k"})", 0, "\"__metadata__\" is text, must be an object"},
    {"NoDtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "lacks dtype"},
    {"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "lacks shape"},
    {"NoOffsets", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "lacks data_offsets"},
    {"DtypeTwice", R"({"a":{"dtype":"U8","dtype":"I8"}})", 0, "has dtype twice"},
    {"UnknownField", R"({"a":{"color":"red"}})", 0, "unknown field \"color\""},
    {"UnknownDtype", one(R"("F99")", "[1]", "[0,1]"), 1, "unknown dtype \"F99\""},
    {"DtypeIsANumber", one("8", "[1]", "[0,1]"), 1, "dtype of tensor \"a\" is number 8"},
    {"ShapeIsANumber", one(R"("U8")", "4", "[0,4]"), 4, "shape of tensor \"a\" is number 4"},
    {"NegativeSize", one(R"("U8")", "[-4]", "[0,4]"), 4, "holds number -4"},
    {"FractionalSize", one(R"("U8")", "[1.5]", "[0,4]"), 4, "holds number \"1.5\""},
    {"SizeIsText", one(R"("U8")", R"(["4"])", "[0,4]"), 4, "holds text"},
    {"SizePast63Bits", one(R"("U8")", "[9223372036854775808]", "[0,4]"), 4, "2^63-1"},
    {"SizePast64Bits", one(R"("U8")", "[99999999999999999999]", "[0,4]"), 4, "2^63-1"},
    {"NestedShape", one(R"("U8")", "[[4]]", "[0,4]"), 4, "holds an array"},
    {"ShapeOverflows", one(R"("F32")", "[4294967296,4294967296]", "[0,4]"), 4, "overflows 64 bits"},
    {"BitsOverflow", one(R"("F32")", "[1152921504606846976]", "[0,4]"), 4, "overflows 64 bits"},
    {"EmptyShapeOverflows", one(R"("U8")", "[0,4294967296,4294967296,4294967296]", "[0,0]"), 0,
     "overflows 64 bits"},
    {"OneOffset", one(R"("U8")", "[4]", "[0]"), 4, "must hold two whole numbers"},
    {"ThreeOffsets", one(R"("U8")", "[4]", "[0,4,8]"), 4, "hold number 8"},
    {"NegativeOffset", one(R"("U8")", "[4]", "[-4,0]"), 4, "hold number -4"},
    {"OffsetsBackwards", one(R"("U8")", "[4]", "[4,0]"), 4, "bytes 4 to 0 of 4"},
    {"EndPastTheFile", one(R"("U8")", "[400]", "[0,400]"), 4, "is the file truncated?"},
    {"OffsetsOverflow", one(R"("U8")", "[8]", "[18446744073709551612,4]"), 4, "of 4 data bytes"},
    {"TooFewBytes", one(R"("F32")", "[2]", "[0,4]"), 4, "has 4 bytes, but F32 [2] needs 8"},
    {"TooManyBytes", one(R"("F32")", "[1]", "[0,8]"), 8, "has 8 bytes, but F32 [1] needs 4"},
    {"HalfByte", one(R"("F4")", "[3]", "[0,2]"), 2, "does not fill whole bytes"},
    {"HoleAtTheStart", one(R"("U8")", "[4]", "[4,8]"), 8, "must begin at 0: tensors leave a hole"},
    {"BytesAfterTheEnd", one(R"("U8")", "[4]", "[0,4]"), 8, "its tensors end at 4"},
    {"DataWithoutTensors", "{}", 8, "its tensors end at 0"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
     6, "tensors overlap"},
    {"Hole",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
     6, "begins at data byte 4, must begin at 2"},
    {"DeepNesting", R"({"a":)" + std::string(100'000, '['), 0, "\"a\" is an array"},
    {"DeepObjects", R"({"a":{"dtype":{"x":)", 0, "dtype of tensor \"a\" is an object"},
    {"ManyDims", one(R"("U8")", "[1" + repeated(",1", 64) + "]", "[0,1]"), 1,
     "tensor \"a\" has more than 64 dimensions"},
    {"LongToken", one(R"("U8")", "[1" + std::string(200, 'x') + "]", "[0,1]"), 1, "is not JSON"},
    {"HugeName", R"({")" + std::string(1'000'000, 'n') + R"(":7})", 0, "nnn...\" is number 7"},
};

TEST(MalformedSafetensorsTest, AGitLfsPointerIsNamed) {
  const TempFolder folder;
  const std::string path = folder.write(
      "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  expect_error(Errc::kMalformedFile,
               path + " is a Git LFS pointer, must be the file that it stands",
               [&] { SafetensorsFile::open(path); });
}

TEST(MalformedSafetensorsTest, EveryBadHeaderIsOneClearError) {
  for (const BadHeader& bad : kBadHeaders) {
    SCOPED_TRACE(bad.name);
    const auto bytes = safetensors_image(bad.header, bad.data_bytes);
    expect_error(Errc::kMalformedFile, bad.phrase,
                 [&] { parse_safetensors_header(bytes, "file.safetensors"); });
    expect_error(Errc::kMalformedFile, "file.safetensors",
                 [&] { parse_safetensors_header(bytes, "file.safetensors"); });
  }
}

TEST(MalformedSafetensorsTest, MessagesStayShort) {
  const std::string token(1'000'000, 'n');
  for (const std::string& header :
       {R"({")" + token + R"(":7})", R"({")" + token, R"({"a":1)" + token}) {
    try {
      parse_safetensors_header(safetensors_image(header, 0), "f");
      FAIL();
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 400u);
      EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("json.exception")));
    }
  }
}

TEST(MalformedSafetensorsTest, StatedHeaderLengthIsChecked) {
  const struct {
    std::uint64_t stated;
    const char* phrase;
  } cases[] = {{3, "its tensors end at 0"},
               {100, "states a header of 100 bytes, but has 10"},
               {100'000'001, "at most 100000000"},
               {UINT64_MAX - 7, "at most 100000000"},
               {UINT64_MAX - 1, "at most 100000000"}};
  for (const auto& c : cases) {
    const auto bytes = safetensors_image("{}        ", 0, c.stated);
    expect_error(Errc::kMalformedFile, c.phrase, [&] { parse_safetensors_header(bytes, "f"); });
  }
}

TEST(MalformedSafetensorsTest, EveryTruncationIsAnError) {
  const auto bytes = safetensors_image(one(R"("F32")", "[2]", "[0,8]"), 8);
  ASSERT_EQ(parse_safetensors_header(bytes, "f").entries.size(), 1u);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THROW(parse_safetensors_header(cut, "f"), Error) << length;
  }
}

TEST(MalformedSafetensorsTest, FilesThatAreNoFiles) {
  const TempFolder folder;
  expect_invalid("No such file", [&] { SafetensorsFile::open(folder.file("none.safetensors")); });
  expect_error(Errc::kMalformedFile, "is not a regular file",
               [&] { SafetensorsFile::open(folder.path()); });
  const std::string empty = folder.write("empty.safetensors", "");
  expect_error(Errc::kMalformedFile, "has 0 bytes", [&] { SafetensorsFile::open(empty); });
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  expect_error(Errc::kMalformedFile, "is not a regular file",
               [&] { SafetensorsFile::open(folder.file("pipe")); });
}

}  // namespace
}  // namespace switchyard
