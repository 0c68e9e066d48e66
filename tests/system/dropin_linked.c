/* Linked with libibverbs and librdmacm, as most programs are: binds an identifier to the address
 * that it is given, asks the device behind it for its port through libibverbs, and prints both.
 * Exit status 1 if something fails. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct ibv_port_attr port;
    if (argc != 2 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1 || !channel ||
        rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, (struct sockaddr *)&address) || !id->verbs ||
        ibv_query_port(id->verbs, id->port_num, &port)) {
        perror("dropin_linked");
        return 1;
    }
    printf("%s: %s\n", ibv_get_device_name(id->verbs->device), ibv_port_state_str(port.state));
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
    return 0;
}
