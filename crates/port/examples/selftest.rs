//! Prints what the self-test finds on this machine: `cargo run -p airdma-port --example selftest`.

#![allow(clippy::print_stdout)]

fn main() {
    let found = airdma_port::selftest::run();
    println!("{found}");
    std::process::exit(i32::from(found.refuted()));
}
