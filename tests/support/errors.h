// SPDX-License-Identifier: Apache-2.0
//
// errors.h: expects a call to fail with this code and a message that contains this phrase.
#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/error.h"

namespace switchyard::test {

template <typename Call>
void expect_error(Errc code, const std::string& phrase, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error, want one with: " << phrase;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr(phrase));
  }
}

}  // namespace switchyard::test
