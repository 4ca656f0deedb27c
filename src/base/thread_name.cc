// SPDX-License-Identifier: Apache-2.0
#include "base/thread_name.h"

#include <pthread.h>

namespace spillway {

void name_this_thread(const char* name) {
  // It is no error if the system refuses the name.
  static_cast<void>(pthread_setname_np(pthread_self(), name));
}

}  // namespace spillway
