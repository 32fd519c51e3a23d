// SPDX-License-Identifier: Apache-2.0
//
// common_options.h: options that several verbs have, and what follows from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "exchange/agree.h"

namespace CLI {
class App;
}

namespace switchyard::cli {

/// --json [FILE]: `json` becomes the file, or "-" when the option stands alone.
void add_json(CLI::App* verb, std::string& json);
/// --seed: any whole number from 0 to 2^63 - 1.
void add_seed(CLI::App* verb, std::uint64_t& seed, const std::string& help);
/// --timeout: milliseconds; 0 stays the setting's.
void add_timeout(CLI::App* verb, std::int64_t& timeout_ms);

/// --exact-messages and --host-capacity, as in ExchangeOptions.
void add_messages(CLI::App* verb, bool& are_exact, std::int64_t& host_capacity);
/// Errors: kInvalidArgument: they are given, but not for GPUs.
void check_messages(const std::string& verb, bool are_exact, std::int64_t host_capacity,
                    const std::string& device);

/// --engine: empty stays the setting's.
void add_engine(CLI::App* verb, std::string& engine);
void add_device(CLI::App* verb, std::string& device, const std::string& help);
/// --experts: `what` begins the help.
void add_experts(CLI::App* verb, std::string& experts, const std::string& what);

/// --device; does nothing for "cpu". Errors: kNotAvailable with the reason.
void require_device(const std::string& verb, const std::string& device);

/// --experts with --device. Errors: kInvalidArgument: experts of the other device.
void require_experts(const std::string& verb, const std::string& experts,
                     const std::string& device);

/// --filter and --names: * matches any text.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// Throws when the report could not be written. Call it before the work. Errors: kInvalidArgument.
void check_json(const std::string& verb, const std::string& json);

/// Prints the report as text, or as JSON alone when --json has no file; else JSON goes to the file.
/// Errors: kSystem.
void publish(const std::string& json, const std::function<std::string()>& as_text,
             const std::function<std::string()>& as_json);

/// What every rank of a job must be given alike: the options of the verb and the settings, but not
/// where results go and how ranks meet.
NamedValues shared_options(const CLI::App& verb);

}  // namespace switchyard::cli
