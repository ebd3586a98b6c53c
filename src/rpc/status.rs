//! Refusals as gRPC statuses, and nowhere else.
