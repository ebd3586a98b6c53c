//! Compiles the protos, without protoc.

#![expect(
    clippy::disallowed_methods,
    reason = "Cargo talks to a build script by variables"
)]

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

/// Where the protos are.
const PROTOS: &str = "proto/adjourn/v1";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");

    let mut files = Vec::new();
    for entry in fs::read_dir(PROTOS)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path);
        }
    }
    files.sort();

    let descriptors = protox::Compiler::new(["proto"])?
        .include_imports(true)
        // Comments become doc comments.
        .include_source_info(true)
        .open_files(files)?
        .file_descriptor_set();

    // Served by gRPC reflection and read by the client generators, so that the
    // server and every client are built from one and the same descriptor set.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("adjourn.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
