// SPDX-License-Identifier: Apache-2.0

#include <initializer_list>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "io/model_config.h"
#include "support/errors.h"
#include "support/published_configs.h"

namespace switchyard {
namespace {

using namespace test;

ModelConfig parse(const std::string& text) { return parse_model_config(text, "dir/config.json"); }

struct BadChange {
  const char* from;
  const char* to;
  const char* phrase;
};

void expect_malformed(const char* text, std::initializer_list<BadChange> changes) {
  for (const BadChange& change : changes) {
    SCOPED_TRACE(change.to);
    const std::string bad = replaced(text, change.from, change.to);
    expect_error(Errc::kMalformedFile, change.phrase, [&] { parse(bad); });
    expect_error(Errc::kMalformedFile, "dir/config.json", [&] { parse(bad); });
  }
}

TEST(MalformedModelConfigTest, BadValuesNameFileKeyAndValue) {
  expect_malformed(
      kV3,
      {{"\"hidden_size\": 7168", "\"hidden_size\": \"big\"",
        "hidden_size is \"big\", must be a whole"},
       {"\"hidden_size\": 7168", "\"hidden_size\": -7168", "hidden_size is -7168"},
       {"\"hidden_size\": 7168", "\"hidden_size\": 0", "hidden_size is 0, must be"},
       {"\"hidden_size\": 7168", "\"hidden_size\": 7168.5", "hidden_size is 7168.5"},
       {"\"hidden_size\": 7168", "\"hidden_size\": 4294967297", "is 4294967297, must be"},
       {"\"hidden_size\": 7168", "\"hidden_size\": 18446744073709551615", "from 1 to 16777216"},
       {"\"hidden_size\": 7168", "\"hidden_size\": 1e999", "number overflow"},
       {"\"hidden_size\": 7168", "\"hidden_size\": [7168]", "hidden_size is an array"},
       {"\"hidden_size\": 7168", "\"hidden_size\": null", "hidden_size is null, must be a value"},
       {"\"hidden_size\": 7168", "\"hidden\": 7168", "has no key hidden_size"},
       {"\"hidden_size\": 7168", "\"n_group\": 7168", "has the key \"n_group\" twice"},
       {"\"n_routed_experts\": 256", "\"n_routed_experts\": 65536", "from 1 to 65535"},
       {"\"n_routed_experts\": 256", "\"n_routed_experts\": 255",
        "n_group is 8, must be a divisor"},
       {"\"n_routed_experts\": 256", "\"n_routed_experts\": 8", "groups of 1 expert"},
       {"\"n_routed_experts\": 256", "\"n_experts\": 256", "has no key n_routed_experts"},
       {"\"n_routed_experts\": 256", "\"n_routed_experts\": 256, \"num_experts\": 8",
        "num_experts is 8, must be the same as n_routed_experts"},
       {"\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 65", "from 1 to 64"},
       {"\"topk_group\": 4", "\"topk_group\": 9", "topk_group is 9, but n_group is 8"},
       {"\"topk_group\": 4", "\"topk_group\": 0", "topk_group is 0"},
       {"\"noaux_tc\"", "\"magic\"", "topk_method is \"magic\""},
       {"\"sigmoid\"", "\"relu\"", "scoring_func is \"relu\""},
       {"\"sigmoid\"", "7", "scoring_func is 7, must be text"},
       {"\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", "norm_topk_prob is 1, must be true"},
       {"2.5", "-2.5", "routed_scaling_factor is -2.5"},
       {"2.5", "\"2.5\"", "must be a number"},
       {"\"n_shared_experts\": 1", "\"n_shared_experts\": -1", "n_shared_experts is -1"},
       {"\"first_k_dense_replace\": 3", "\"first_k_dense_replace\": 61", "all 61 layers are dense"},
       {"\"moe_layer_freq\": 1", "\"moe_layer_freq\": 0", "moe_layer_freq is 0"},
       {"\"num_hidden_layers\": 61", "\"num_hidden_layers\": 2000000000", "from 1 to 100000"}});
}

TEST(MalformedModelConfigTest, BadCombinations) {
  const std::string few = replaced(kV3, "\"n_group\": 8", "\"n_group\": 128");
  expect_malformed(few.c_str(), {{"\"topk_group\": 4", "\"topk_group\": 3",
                                  "leaves 6 experts, but num_experts_per_tok is 8"}});
  expect_malformed(
      kQwen3, {{"[]", "[-1]", "mlp_only_layers is an array, must be whole numbers from 0, not -1"},
               {"[]", "\"0\"", "mlp_only_layers is \"0\""},
               {"\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0", "_step is 0"},
               {"\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 49", "are dense"},
               {"\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 64, \"a\": {",
                "json: dir/config.json"},
               {"\"num_experts\": 128", "\"num_experts\": 4", "but there are 4 experts"}});
  expect_malformed(kMixtral8x7B,
                   {{"\"num_local_experts\": 8", "\"x\": 8", "no key num_local_experts"},
                    {"\"intermediate_size\"", "\"x\"", "no key intermediate_size"}});
}

TEST(MalformedModelConfigTest, TextThatIsNoConfig) {
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  std::string wide = "[0";
  for (int i = 0; i < 1'000'001; ++i) wide += ",0";
  wide += "]";
  expect_error(Errc::kMalformedFile, "dir/config.json", [&] { parse(""); });
  expect_error(Errc::kMalformedFile, "dir/config.json is a Git LFS pointer, must be",
               [&] { parse("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"); });
  expect_error(Errc::kMalformedFile, "holds an array, must hold an object", [&] { parse("[]"); });
  expect_error(Errc::kMalformedFile, "holds 7, must hold an object", [&] { parse("7"); });
  expect_error(Errc::kMalformedFile, "NUL byte at offset 2",
               [&] { parse(std::string("{}\0", 3)); });
  expect_error(Errc::kMalformedFile, "deeper than 32", [&] { parse(deep); });
  expect_error(Errc::kMalformedFile, "more than 1000000 values", [&] { parse(wide); });
}

TEST(MalformedModelConfigTest, MessagesStayShort) {
  const std::string token(1'000'000, 'x');
  for (const std::string& text :
       {"{\"" + token, "{\"a\": \"" + token + "\"", "{\"a\": 1" + token, "\"" + token + "\"",
        "{\"a\": 1" + std::string(1'000'000, '0') + "}",
        replaced(kV3, "\"sigmoid\"", "\"" + token + "\"")}) {
    try {
      parse(text);
      FAIL();
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 400u);
    }
  }
}

TEST(MalformedModelConfigTest, OtherModelsAreNotSupported) {
  expect_error(Errc::kNotSupported, "model_type is \"llama\", must be one of: deepseek_v2",
               [&] { parse(R"({"model_type": "llama"})"); });
  expect_error(Errc::kNotSupported, "model_type is absent", [&] { parse("{}"); });
  expect_error(
      Errc::kNotSupported, "model_type is \"llava\", of its text_config \"llama\", must be",
      [&] { parse(R"({"model_type": "llava", "text_config": {"model_type": "llama"}})"); });
  expect_error(Errc::kMalformedFile, "config.json: text_config has no key num_hidden_layers",
               [&] { parse(R"({"model_type": "kimi_k25", "text_config": {}})"); });
  expect_error(Errc::kNotSupported, "hidden_act is \"gelu\"",
               [&] { parse(replaced(kV2Lite, "\"silu\"", "\"gelu\"")); });
  for (const char* method : {"awq", "gptq", "modelopt", "bitsandbytes", "compressed-tensors"}) {
    const std::string quantization = replaced(
        R"("quantization_config": {"quant_method": "METHOD", "bits": 4}, "x":)", "METHOD", method);
    expect_error(Errc::kNotSupported,
                 fmt::format("quantization_config has quant_method \"{}\", must be \"fp8\"; "
                             "dequantize the checkpoint first",
                             method),
                 [&] { parse(replaced(kV3, "\"quantization_config\":", quantization)); });
  }
  expect_error(Errc::kNotSupported, "has quant_method absent, must be \"fp8\"",
               [&] { parse(replaced(kV3, "\"quant_method\"", "\"method\"")); });
  expect_error(Errc::kNotSupported, "quantization_config has fmt \"e5m2\", must be \"e4m3\"",
               [&] { parse(replaced(kV3, "\"e4m3\"", "\"e5m2\"")); });
  expect_error(Errc::kNotSupported, "weight_block_size of quantization_config is [64,128]",
               [&] { parse(replaced(kV3, "[128, 128]", "[64, 128]")); });
  expect_error(Errc::kMalformedFile, "quantization_config holds 7, must hold an object", [&] {
    parse(replaced(kV3, "\"quantization_config\":", "\"quantization_config\": 7, \"x\":"));
  });
  expect_error(Errc::kNotSupported, "weight_block_size of quantization_config is absent",
               [&] { parse(replaced(kV3, ", \"weight_block_size\": [128, 128]", "")); });
}

}  // namespace
}  // namespace switchyard
