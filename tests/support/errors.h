// SPDX-License-Identifier: Apache-2.0
//
// errors.h: expects a call to fail, with this code and a message that contains this phrase.
#pragma once

#include <string>

#include <gmock/gmock.h>

#include "switchyard/error.h"

namespace switchyard::test {

/// Returns the Error that `call` throws; the test fails when it throws none.
template <typename Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(Errc::kInternal, "no error was thrown");
}

template <typename Call>
void expect_error(Errc code, const std::string& phrase, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error, must be one with: " << phrase;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr(phrase));
  }
}

template <typename Call>
void expect_invalid(const std::string& phrase, Call&& call) {
  expect_error(Errc::kInvalidArgument, phrase, call);
}

}  // namespace switchyard::test
