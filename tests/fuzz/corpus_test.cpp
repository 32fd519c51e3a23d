// SPDX-License-Identifier: Apache-2.0
//
// Runs every file of tests/fuzz/corpus/<target>, and mutations of it, through the target's entry.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"
#include "fuzz/entries.h"

namespace switchyard {
namespace {

using Entry = void (*)(const std::uint8_t*, std::size_t);

std::vector<std::string> files_of(const std::string& target) {
  std::vector<std::string> files;
  for (const auto& item :
       std::filesystem::directory_iterator(std::string(SWITCHYARD_CORPUS_DIR) + "/" + target)) {
    files.push_back(item.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::uint8_t> contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Replaces each byte in turn by a random one and tries each prefix: a fuzzer's first mutations.
void run_mutations(Entry entry, const std::vector<std::uint8_t>& seed) {
  std::vector<std::uint8_t> input = seed;
  for (std::size_t i = 0; i < seed.size(); ++i) {
    input[i] = static_cast<std::uint8_t>(random_bits(seed.size(), i));
    entry(input.data(), input.size());
    input[i] = seed[i];
    entry(seed.data(), i);
  }
}

void run_corpus(const std::string& target, Entry entry) {
  const std::vector<std::string> files = files_of(target);
  ASSERT_GE(files.size(), 5u) << "the corpus of " << target << " is gone";
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const std::vector<std::uint8_t> seed = contents(file);
    entry(seed.data(), seed.size());
    if (seed.size() < 4096) run_mutations(entry, seed);
  }
}

TEST(FuzzCorpusTest, Safetensors) { run_corpus("safetensors", fuzz::safetensors); }
TEST(FuzzCorpusTest, ModelConfig) { run_corpus("model_config", fuzz::model_config); }
TEST(FuzzCorpusTest, Index) { run_corpus("index", fuzz::index); }
TEST(FuzzCorpusTest, Routing) { run_corpus("routing", fuzz::routing); }
TEST(FuzzCorpusTest, StoreServer) { run_corpus("store_server", fuzz::store_server); }
TEST(FuzzCorpusTest, StoreClient) { run_corpus("store_client", fuzz::store_client); }
TEST(FuzzCorpusTest, StoreFile) { run_corpus("store_file", fuzz::store_file); }
TEST(FuzzCorpusTest, Rendezvous) { run_corpus("rendezvous", fuzz::rendezvous); }
TEST(FuzzCorpusTest, Settings) { run_corpus("settings", fuzz::settings); }
TEST(FuzzCorpusTest, Options) { run_corpus("options", fuzz::options); }

}  // namespace
}  // namespace switchyard
