/* What regenerate-abi.sh reads: the public structs of libibverbs, and the kernel's
 * structs that the ibv_copy_*_kern functions translate. */
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_sa.h>
