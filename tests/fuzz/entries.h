// SPDX-License-Identifier: Apache-2.0
//
// entries.h: what the fuzz targets do with an input. The corpus test calls the same functions, so
// every input that once found something also runs in ordinary builds.
//
// An entry lets only the documented errors pass and checks the reader's promises; any other outcome
// ends the process, which a fuzzer reports.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard::fuzz {

void safetensors(const std::uint8_t* data, std::size_t size);
void model_config(const std::uint8_t* data, std::size_t size);
void index(const std::uint8_t* data, std::size_t size);
void routing(const std::uint8_t* data, std::size_t size);
void store_server(const std::uint8_t* data, std::size_t size);
void store_client(const std::uint8_t* data, std::size_t size);
void store_file(const std::uint8_t* data, std::size_t size);
void rendezvous(const std::uint8_t* data, std::size_t size);
void settings(const std::uint8_t* data, std::size_t size);
void options(const std::uint8_t* data, std::size_t size);

}  // namespace switchyard::fuzz
