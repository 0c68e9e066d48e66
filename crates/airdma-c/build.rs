//! Gives the shared library its name for the loader, which changes with the ABI.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libairdma_north.so.0");
}
