// SPDX-License-Identifier: Apache-2.0

#include "transport/network.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <ifaddrs.h>
#include <iterator>
#include <memory>
#include <netdb.h>

#include "core/fail.h"

#include <net/if.h>

namespace switchyard {
namespace {

// Empty for what is no address of the internet protocol.
std::string numeric_host(const sockaddr* address) {
  if (address == nullptr) return "";
  const int family = address->sa_family;
  if (family != AF_INET && family != AF_INET6) return "";
  std::array<char, NI_MAXHOST> host{};
  const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const int error =
      getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host.data() : "";
}

// Interfaces that are down, and some virtual ones, cannot be read or have -1.
std::int64_t speed_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  std::int64_t speed = 0;
  return file >> speed && speed > 0 ? speed : 0;
}

bool is_link_local(const std::string& address) { return address.find('%') != address.npos; }

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    if (errno == EMFILE || errno == ENFILE) fail_errno("getifaddrs", "network interfaces");
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    auto found = std::ranges::find(interfaces, name, &NetworkInterface::name);
    if (found == interfaces.end()) {
      interfaces.push_back({.name = name,
                            .is_up = (entry->ifa_flags & IFF_UP) != 0,
                            .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                            .speed_mbit = speed_of(name)});
      found = interfaces.end() - 1;
    }
    if (std::string host = numeric_host(entry->ifa_addr); !host.empty()) {
      found->addresses.push_back(std::move(host));
    }
  }
  return interfaces;
}

std::vector<std::string> reachable_addresses(const std::vector<NetworkInterface>& interfaces) {
  std::vector<std::string> addresses;
  for (const NetworkInterface& one : interfaces) {
    if (!one.is_up || one.is_loopback) continue;
    std::ranges::remove_copy_if(one.addresses, std::back_inserter(addresses), is_link_local);
  }
  std::stable_partition(addresses.begin(), addresses.end(), [](const std::string& address) {
    return address.find(':') == address.npos;
  });
  return addresses;
}

}  // namespace switchyard
