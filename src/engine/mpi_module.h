// SPDX-License-Identifier: Apache-2.0
//
// mpi_module.h: the part of the library that needs MPI, behind one table of functions. It is loaded
// when ranks first need MPI; everything else works without it. Nothing in it throws or blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/messages.h"

namespace switchyard {

/// A communicator of the library's own: a duplicate of another. Any thread.
class MpiLink {
 public:
  enum class State { kPending, kDone, kWrongSize };

  MpiLink() = default;
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;
  /// Waits for nobody: what is pending stays until MPI is done with it.
  virtual ~MpiLink() = default;

  /// False until the ranks have all asked for the duplicate; makes progress. The rest needs true.
  virtual bool is_ready() = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int max_tag() const = 0;

  /// As MessageChannel; ids count from 1. A send is done when its receive has taken it, so that
  /// nothing of it waits for further progress of this rank.
  virtual MessageId send(int peer, int tag, const MessageBuffer& buffer) = 0;
  virtual MessageId receive(int peer, int tag, const MessageBuffer& buffer) = 0;
  /// Makes progress with every message of the link.
  virtual State look(MessageId message) = 0;
  virtual void progress() = 0;
  /// Cancels the receive, if it is pending. Of a send nothing can be taken back.
  virtual void give_up(MessageId message) = 0;
};

enum class MpiInit { kNone, kRunning, kDone, kFinalized };

/// Filled by the module.
struct MpiModule {
  const char* version = nullptr;  ///< of the library it was built with
  /// "Open MPI v4.1.4, ..."; may be asked before MPI_Init.
  std::string (*library)() = nullptr;
  /// Of this process, whoever called MPI_Init.
  MpiInit (*init_state)() = nullptr;
  /// Calls MPI_Init_thread, unless somebody has, on a thread that the module keeps, as no deadline
  /// can end that call. At the end of the process the same thread calls MPI_Finalize, which is
  /// waited for at most ten times `timeout_ms` (the largest of all calls), unless forbid_finalize
  /// is called; `when_finalized` is called once it has returned. Returns why there is no such
  /// thread; empty if there is.
  std::string (*start_init)(std::int64_t timeout_ms, void (*when_finalized)()) = nullptr;
  /// Whether that thread was started in this process.
  bool (*will_finalize)() = nullptr;
  /// Why this thread may not use MPI, for example because it was initialized for another one alone;
  /// empty if it may.
  std::string (*why_not_here)() = nullptr;
  /// This process in MPI_COMM_WORLD, or in the communicator with this Fortran handle. Returns why
  /// the handle is of no communicator of one group; empty if it is.
  std::string (*place_in)(const int* fortran_handle, int& rank, int& size) = nullptr;
  /// Ranks or messages were lost, and MPI_Finalize might wait for them. Where the end of the
  /// process waits already, it does no more. Any thread.
  void (*forbid_finalize)() = nullptr;
  /// Starts to duplicate MPI_COMM_WORLD, or the communicator with this Fortran handle. Null, with
  /// the reason in `why`, when MPI refuses.
  std::shared_ptr<MpiLink> (*duplicate)(const int* fortran_handle, std::string& why) = nullptr;
};

/// The loaded module. Errors: kNotAvailable if it was not built, is not found, is of another
/// version or has no MPI; the message says which.
const MpiModule& mpi_module();

/// Empty, or why mpi_module() would throw.
std::string why_no_mpi();

/// As MpiModule::forbid_finalize, where a module was loaded.
void forbid_mpi_finalize() noexcept;

/// The entry point of the module.
extern "C" const MpiModule* switchyard_mpi_module();

}  // namespace switchyard
