// SPDX-License-Identifier: Apache-2.0
//
// module_file.h: loads a part of the library that is a file of its own.
#pragma once

#include <string>

namespace switchyard {

/// The address of `entry` in the module `file_name`, which is looked for at `asked` alone or, when
/// that is empty, beside the library or the program and where the system keeps libraries. Null,
/// with what the loader says of the first file that is there in `why`, when it cannot be loaded.
/// What was loaded stays. `is_global`: its libraries may load plug-ins that need their symbols.
void* load_module_entry(const std::string& asked, const char* file_name, const char* entry,
                        bool is_global, std::string& why);

}  // namespace switchyard
