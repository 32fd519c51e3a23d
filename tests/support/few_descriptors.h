// SPDX-License-Identifier: Apache-2.0
//
// few_descriptors.h: a process that can open only a few files more.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

// UndefinedBehaviorSanitizer opens a pipe to look at an object, and without one calls it invalid.
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
#define SWITCHYARD_CHECKS_TAKE_DESCRIPTORS
#endif
#endif

namespace switchyard::test {

/// While it lives, the process has `num_free` descriptors left.
class FewDescriptors {
 public:
  explicit FewDescriptors(int num_free) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 512);
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = dup(STDOUT_FILENO); fd >= 0; fd = dup(STDOUT_FILENO)) taken_.push_back(fd);
    for (int i = 0; i < num_free && !taken_.empty(); ++i) {
      close(taken_.back());
      taken_.pop_back();
    }
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

}  // namespace switchyard::test
