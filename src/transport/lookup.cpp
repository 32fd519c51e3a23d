// SPDX-License-Identifier: Apache-2.0

#include "transport/lookup.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <netdb.h>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "core/fail.h"
#include "core/interrupt.h"
#include "core/service_thread.h"

namespace switchyard {
namespace {

struct NameAnswer {
  HostAddresses addresses{};
  bool is_short_of_memory = false;  // or of descriptors
};

NameAnswer ask_system(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const int system_error = error == EAI_SYSTEM ? errno : 0;
  if (error != 0) {
    return {
        {{},
         system_error == 0 ? gai_strerror(error) : std::system_category().message(system_error)},
        error == EAI_MEMORY || system_error == EMFILE || system_error == ENFILE};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  NameAnswer answer;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    RawAddress& address = answer.addresses.found.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
  }
  return answer;
}

// Shared with the thread, which may outlive who asks.
struct NameQuestion {
  std::mutex mutex;
  std::condition_variable is_answered;
  std::optional<NameAnswer> answer;
};

void start_asking(const std::shared_ptr<NameQuestion>& question, const std::string& host,
                  int port) {
  try {
    start_service_thread([question, host, port] {
      NameAnswer answer{{}, true};
      try {
        answer = ask_system(host, port, 0);
      } catch (const std::bad_alloc&) {  // as said
      }
      const std::lock_guard lock(question->mutex);
      question->answer = std::move(answer);
      question->is_answered.notify_all();
    }).detach();
  } catch (const std::system_error& error) {
    fail(Errc::kSystem, "socket: no thread to look up host \"{}\": {}", host, error.what());
  }
}

}  // namespace

HostAddresses read_number(const std::string& host, int port) {
  HostAddresses number = ask_system(host, port, AI_NUMERICHOST).addresses;
  number.why_none.clear();
  return number;
}

HostAddresses look_up(const std::string& host, int port, const Deadline& deadline) {
  HostAddresses number = read_number(host, port);
  if (!number.found.empty()) return number;
  const auto question = std::make_shared<NameQuestion>();
  start_asking(question, host, port);
  std::unique_lock lock(question->mutex);
  while (!question->answer) {
    if (deadline.expired()) return {{}, "its name server does not answer"};
    const auto slice = std::chrono::milliseconds(std::min(kSliceMs, deadline.remaining_ms()));
    if (question->is_answered.wait_for(lock, slice) == std::cv_status::no_timeout) continue;
    lock.unlock();
    require(!is_interrupted(), Errc::kAborted, "socket: interrupted while host \"{}\" is looked up",
            host);
    lock.lock();
  }
  require(!question->answer->is_short_of_memory, Errc::kOutOfMemory, "socket: host \"{}\": {}",
          host, question->answer->addresses.why_none);
  return std::move(question->answer->addresses);
}

}  // namespace switchyard
