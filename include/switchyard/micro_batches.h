// SPDX-License-Identifier: Apache-2.0
//
// micro_batches.h: overlap. A rank's tokens are split into micro-batches; while the rows of one are
// on their way, another one computes. Each has a thread, and exactly one of them runs at a time.
//
// On GPUs the threads only launch work. A body may use a stream of its own, but not the default
// stream (kInvalidArgument): each thread has another one, and the receive part of a call runs in
// the stream of the micro-batch whose rows it receives, whichever thread launches it. Sends and
// receives of all micro-batches run in launch order, which is the same on every rank, so none
// waits for one that has no room to start.
//
// Mirrors vLLM's dual-batch overlap (v1/worker/ubatching.py) over two-phase calls as DeepEP's
// low-latency mode has them; what runs inside a micro-batch finds vLLM's names here.
#pragma once

#include <functional>

#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"

namespace switchyard {

class ModularKernel;
class TensorView;
struct PrepareArguments;

/// Runs `body(m)` for each m from 0 to num_micro_batches - 1, each on its own thread; 0 on the
/// caller's. The turn goes round in a ring, at dbo_yield and when a body ends. ModularKernel::apply
/// takes part by itself; inside, pass m as PrepareArguments::micro_batch. With 1 the body is called
/// and nothing else happens.
///
/// Every rank passes the same number, and its bodies make the same collective calls and yield at
/// the same places, so that every rank makes its calls in the same order.
///
/// The first error of a body, of any type, ends the others (with kAborted), aborts the group, which
/// can then only be destroyed, and is rethrown here once all threads have ended.
/// Errors also: kInvalidArgument (the number; a call from inside a micro-batch), kSystem (no
/// thread), kTimeout (one turn took more than twice the group's timeout: one wait for a peer and
/// as much computing as peers wait for).
SWITCHYARD_API void run_micro_batches(const Group& group, int num_micro_batches,
                                      const std::function<void(int)>& body);

/// True on a thread of run_micro_batches, unless there is only one micro-batch.
SWITCHYARD_API bool dbo_enabled() noexcept;

/// The m of the calling thread; 0 outside.
SWITCHYARD_API int dbo_current_micro_batch() noexcept;

/// Passes the turn to the next micro-batch that has not ended, and returns when it is back; outside
/// a micro-batch, or when no other is left, at once. Errors: kAborted, when another micro-batch
/// failed.
SWITCHYARD_API void dbo_yield();

/// Leaves `hook`, the receive part of a call, to the next micro-batch that has not ended, which
/// calls it exactly once: in dbo_maybe_run_recv_hook, or when its body returns. Outside a
/// micro-batch, or when no other is left, it is called here. After an error hooks are dropped.
SWITCHYARD_API void dbo_register_recv_hook(std::function<void()> hook);

/// Calls the hooks left to this micro-batch, in order. Call it before each send, so that what a
/// peer sent first is received first. Throws what a hook throws.
SWITCHYARD_API void dbo_maybe_run_recv_hook();

/// kernel.apply over `num_micro_batches` contiguous ranges of the tokens, overlapped; with T tokens
/// the first T mod num_micro_batches ranges have one more, and ranges may be empty. The output has
/// the bits of a plain apply wherever rows are independent: with every class, contract and scheme
/// but those with one dynamic scale over all rows, when the experts are batch invariant.
///
/// On a GPU micro-batch 0 runs in `stream` and each further one in a stream of the kernel, forked
/// from `stream` and joined to it, so the call may be captured in a CUDA graph when apply may.
/// Where ranks share the GPU, all run in `stream`.
///
/// Collective, as apply. `arguments` as for apply, micro_batch unused. num_micro_batches is the
/// same on every rank, from 1 to that of kernel.prepare_finalize(); 0: as many.
///
/// Errors: kInvalidArgument for the number and for row counts that differ, with nothing sent; all
/// others as run_micro_batches.
SWITCHYARD_API void apply_overlapped(ModularKernel& kernel, const PrepareArguments& arguments,
                                     const TensorView& output, int num_micro_batches = 0,
                                     Stream stream = Stream::host());

}  // namespace switchyard
