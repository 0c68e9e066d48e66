//! C programs against the library: what the man pages promise.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

/// Another host at the end of a wire: a process in a namespace of its own, whose name is in
/// `OTHER_HOST`.
const TWO_HOSTS: &str = "set -e
         ip link add v0 type veth peer name v1
         unshare --net sleep 120 & peer=$!
         trap 'kill $peer' EXIT
         while ip link show v1 >/dev/null 2>&1; do ip link set v1 netns $peer; sleep 0.05; done
         nsenter --target $peer --net sh -c 'ip link set v1 addrgenmode none up && ip address add 10.6.0.2/24 dev v1'
         ip link set v0 addrgenmode none up
         ip address add 10.6.0.1/24 dev v0
         until ip link show v0 | grep -q LOWER_UP; do sleep 0.05; done
         export OTHER_HOST=/proc/$peer/ns/net";

#[test]
fn a_c_program_finds_what_the_man_pages_promise() {
    program::run("smoke");
}

#[test]
fn records_are_written_and_read_from_c() {
    program::run("records");
}

#[test]
fn records_go_between_two_hosts_and_say_what_was_lost() {
    program::run_after("records_hosts", TWO_HOSTS);
}

#[test]
fn records_to_a_group_are_each_members_own() {
    let loses = "nsenter --target $peer --net sh -c 'nft add table ip loss &&
             nft add chain ip loss input \"{ type filter hook input priority 0; }\" &&
             nft add rule ip loss input udp dport 4791 numgen random mod 10 == 0 drop'";
    program::run_after("records_group", &format!("{TWO_HOSTS}\n{loses}"));
}

#[test]
fn reads_between_two_hosts_lose_nothing() {
    program::run_after("reads_hosts", TWO_HOSTS);
}

#[test]
fn datagrams_are_repeated_until_they_are_there_from_c() {
    program::run("reliable");
}

#[test]
fn reliable_datagrams_between_two_hosts_lose_nothing() {
    program::run_after("reliable_hosts", TWO_HOSTS);
}

#[test]
fn work_requests_that_are_built_call_by_call() {
    program::run("work_requests");
}

#[test]
fn completions_that_are_read_field_by_field() {
    program::run("polling");
}

#[test]
fn memory_of_a_dmabuf_is_mapped_for_as_long_as_it_is_registered() {
    program::run("dmabuf");
}

#[test]
fn functions_of_the_c_library_behave_as_without_us() {
    program::run("files");
}

#[test]
fn programs_that_open_the_libraries_and_ask_by_name_alone() {
    program::run("loaders");
}

#[test]
fn threads_that_are_cancelled() {
    program::run("cancel");
}

#[test]
fn queries_answer_what_was_set_and_what_is_there() {
    program::run("queries");
}

#[test]
fn an_ethernet_address_is_resolved_from_a_gid() {
    // The other host is a process in a namespace of its own.
    program::run_after(
        "resolve",
        "set -e
         ip link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:03
         unshare --net sleep 60 & peer=$!
         trap 'kill $peer' EXIT
         while ip link show v1 >/dev/null 2>&1; do ip link set v1 netns $peer; sleep 0.05; done
         nsenter --target $peer --net sh -c 'ip address add 10.5.0.3/24 dev v1 && ip link set v1 up'
         ip address add 10.5.0.1/24 dev v0
         ip address add fd00::1/64 dev v0 nodad
         ip link set v0 up
         until ip link show v0 | grep -q LOWER_UP; do sleep 0.05; done
         ip neighbour add 10.5.0.2 lladdr 02:00:00:00:00:09 dev v0
         ip neighbour add fd00::2 lladdr 02:00:00:00:00:0a dev v0
         ip route add 10.9.0.0/16 via 10.5.0.2
         ip link add link v0 name v0.7 type vlan id 7 && ip address add 10.7.0.1/24 dev v0.7 && ip link set v0.7 up || true",
    );
}

#[test]
fn a_thread_that_waits_before_the_first_queue_pair_is_woken() {
    program::run_after("waiter", TWO_HOSTS);
}

#[test]
fn a_handler_of_faults_is_called_for_the_librarys_threads_too() {
    program::run("faults");
}

#[test]
fn a_process_that_forks_while_it_opens_devices() {
    program::run("fork");
}
