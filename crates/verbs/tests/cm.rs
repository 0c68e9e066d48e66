//! C programs against the calls of librdmacm: what they refuse, what their events say, who waits
//! for whom.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

const PROGRAMS: [&str; 3] = ["cm_calls", "cm_events", "cm_waits"];

#[test]
fn arguments_and_states_that_are_not_allowed() {
    program::run("cm_calls");
}

#[test]
fn events_of_both_sides() {
    program::run("cm_events");
}

#[test]
fn calls_that_wait_and_threads_that_share() {
    program::run("cm_waits");
}

#[test]
fn the_end_is_not_told_before_the_last_data() {
    program::run("cm_last_words");
    program::run_after("cm_last_words", "export AIRDMA_IMPAIR=drop=2%,seed=3");
}

#[test]
fn a_stopped_peer_delays_the_ends_of_its_connections_once() {
    program::run("cm_silent");
}

/// Two interfaces of one cable, with addresses of ours, on which the kernel asks for those of
/// others.
const NEIGHBOURS: &str = "ip link add va type veth peer name vb
    ip addr add 10.9.0.1/24 dev va && ip addr add 10.9.0.2/24 dev vb && ip -6 addr add fd09::1/64 dev va nodad
    ip link set va up && ip link set vb up
    for i in $(seq 100); do
        ip -6 -o addr show dev va scope link | grep -v tentative | grep -q fe80 && break
        sleep 0.1
    done";

#[test]
fn addresses_that_nobody_has() {
    program::run_after("cm_neighbours", NEIGHBOURS);
}

/// Here the loopback interface is no device.
const NO_LOOPBACK: &str = "unset AIRDMA_LOOPBACK
    ip link add va type veth peer name vb
    ip addr add 10.9.0.1/24 dev va && ip -6 addr add fd09::1/64 dev va nodad
    ip link set va up && ip link set vb up";

#[test]
fn loopback_addresses_stand_for_this_host() {
    program::run_after("cm_loopback", NO_LOOPBACK);
}

#[test]
fn interfaces_that_come_while_one_listens() {
    program::run_after("cm_arrivals", NO_LOOPBACK);
}

#[test]
fn interfaces_that_go_while_they_are_used() {
    program::run_after("cm_departures", NO_LOOPBACK);
}

/// Here are thirty interfaces, and few descriptors.
const MANY: &str = "unset AIRDMA_LOOPBACK
    echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
    for number in $(seq 15); do
        ip link add va$number type veth peer name vb$number
        ip addr add 10.9.1.$number/32 dev va$number && ip addr add 10.9.2.$number/32 dev vb$number
        ip link set va$number up && ip link set vb$number up
    done
    ulimit -S -n 192";

#[test]
fn more_interfaces_than_descriptors() {
    program::run_after("cm_many", MANY);
}

/// Here there is no device at all, for a while.
const NOWHERE: &str = "unset AIRDMA_LOOPBACK";

#[test]
fn no_device_no_address_no_port() {
    program::run_after("cm_places", NOWHERE);
}

/// Here the path MTU of the port is 1,024 bytes.
const SMALL: &str = "ip link set lo mtu 1500";

#[test]
fn a_request_that_cannot_be_accepted_is_refused_unseen() {
    program::run_after("cm_path_mtu", SMALL);
}

#[test]
fn processes_that_fork() {
    program::run("cm_fork");
}

#[test]
fn processes_that_exit_in_a_signal_handler() {
    program::run("cm_exit");
}

#[test]
fn processes_that_die_at_any_moment() {
    program::run("cm_death");
}

#[test]
fn no_memory_is_lost_over_connections() {
    for name in PROGRAMS {
        program::run_in_valgrind(name);
    }
}

#[test]
fn calls_that_rdma_core_has_got_since_release_44() {
    program::run("newer");
}
