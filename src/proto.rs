//! The API as generated from `proto/`, and nothing else.

/// Everything in the package `adjourn.v1`.
#[expect(
    unused_qualifications,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
pub mod v1 {
    tonic::include_proto!("adjourn.v1");
}

/// The descriptor set of the API and what it imports, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/adjourn.bin"));
