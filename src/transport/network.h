// SPDX-License-Identifier: Apache-2.0
//
// network.h: the network interfaces of this machine, and where other machines may reach it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

struct NetworkInterface {
  std::string name;
  bool is_up = false;
  bool is_loopback = false;
  std::int64_t speed_mbit = 0;           ///< per second, as the driver reports it; 0: unknown
  std::vector<std::string> addresses{};  ///< numeric; link-local ones end in "%" and the name
};

/// In the order of the system; those without an address, too. Empty where the system does not say.
/// Errors: kOutOfMemory (no descriptor is left).
std::vector<NetworkInterface> network_interfaces();

/// Addresses at which other machines may reach this one, best first: those of interfaces that are
/// up, IPv4 first, without loopback and link-local ones.
std::vector<std::string> reachable_addresses(const std::vector<NetworkInterface>& interfaces);

}  // namespace switchyard
