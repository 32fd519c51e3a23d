// SPDX-License-Identifier: Apache-2.0
//
// page.h: the frame of a self-contained page, with the colours that charts name. It follows the
// reader's light or dark scheme.
#pragma once

#include <array>
#include <string>

namespace switchyard::cli {

/// Of lines other than the main one, "--ours".
inline constexpr std::array<const char*, 6> kColors{"--c0", "--c1", "--c2", "--c3", "--c4", "--c5"};

/// Up to the body's first element.
std::string page_start(const std::string& title);
std::string page_end();

/// A name and its value in a <dl>.
std::string entry(const std::string& name, const std::string& value);

/// A time in a label: in us, from 100 ms on in ms.
std::string time_text(double us);

}  // namespace switchyard::cli
