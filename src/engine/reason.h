// SPDX-License-Identifier: Apache-2.0
//
// reason.h: the text in which a rank reports its error to peers.
#pragma once

#include <string>

namespace switchyard {

/// The message without what the words around it say: the function ("group: ") that it opens with,
/// and the rank that wrote it ("(rank 1 of 4)", "(rank 1 of 4 stopped in barrier, call 2)").
std::string reason_for_others(std::string message);

}  // namespace switchyard
