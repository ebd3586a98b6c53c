//! The suite that every backend passes, ours and yours.
//!
//! Implement [`Harness`] for your backend and list it in a test:
//!
//! ```text
//! adjourn::storage_conformance! {
//!     mine => MyHarness::new();
//! }
//! ```
//!
//! Each case becomes a test of its own, such as `mine::rows::a_row_is_written_once`.
//! A backend whose data outlives it also implements [`Durable`] and is listed with
//! `adjourn::storage_conformance_durable!`.
//!
//! Where a law is about calls that overlap, the case makes them overlap: an
//! operation waits in the middle until the other one is there. A backend that runs
//! one after the other cannot let them meet, so the meeting is called off after a
//! moment; the law is the same.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a case that fails panics: that is how a test says so"
)]

pub mod durability;
pub mod feed;
pub mod indexes;
pub mod records;
pub mod requests;
pub mod rows;
pub mod time;
pub mod tools;
pub mod transactions;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Key, Kind, Store};
use crate::domain::id::Tenant;
use crate::domain::log::{LogId, RowClass};
use crate::domain::time::Clock;

/// How the suite gets at a backend. One harness serves one case.
#[async_trait]
pub trait Harness: Debug + Send + Sync {
    /// Opens the store: an empty one at first. The store before was closed.
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store>;
}

/// How the suite gets at what a backend has stored.
#[async_trait]
pub trait Durable: Harness {
    /// Damages what is stored, behind the back of the store, which is closed.
    async fn damage(&self, wound: Wound);
}

/// Damage that a store has to notice.
#[derive(Clone, Debug)]
pub enum Wound {
    /// One bit of a body is another.
    Flip(Place),
    /// What is stored at the first place is at the second one.
    Move(Place, Place),
}

/// What is damaged.
#[derive(Clone, Debug)]
pub enum Place {
    /// The newest version of a record.
    Record(Tenant, Kind, Key),
    /// A row of a log.
    Row(Tenant, LogId, RowClass, i64),
    /// The record of a request.
    Request(Tenant, Key),
}

/// Makes a test of each case of the suite for each backend.
///
/// The cases are listed here once, so that no backend can miss one. The tests need
/// `tokio` with its macros and its multi-threaded runtime.
#[macro_export]
macro_rules! storage_conformance {
    ($($backend:ident => $harness:expr;)+) => {
        $($crate::storage_conformance! { @backend $backend, $harness,
            records: [
                an_absent_record_is_none,
                a_version_is_read_at_every_revision_until_the_next,
                a_record_stored_twice_in_a_commit_is_the_second,
                one_record_twice_in_raw_changes_is_refused,
                records_come_in_the_order_of_their_keys,
                pages_of_records_neither_repeat_nor_skip,
                keys_are_compared_byte_by_byte,
                kinds_are_apart,
                a_body_is_kept_byte_for_byte,
                a_timeline_entry_is_written_once,
            ],
            indexes: [
                an_index_is_ordered_by_place_then_key,
                pages_of_an_index_neither_repeat_nor_skip,
                an_entry_is_there_until_it_is_taken_away,
                an_entry_put_twice_is_there_once,
            ],
            rows: [
                a_row_is_written_once,
                one_row_twice_in_a_commit_is_refused,
                absent_rows_are_left_out,
                classes_and_logs_are_apart,
                marks_are_those_of_the_items,
            ],
            feed: [
                changes_come_in_commit_order,
                a_commit_is_never_parted,
                only_the_kinds_asked_for_come,
                the_chain_links_all_changes,
                the_chain_is_known_at_each_commit_and_at_no_other,
                a_commit_wakes_who_waits,
            ],
            requests: [
                a_request_is_remembered,
                a_request_is_replaced,
            ],
            transactions: [
                revisions_count_one_by_one_for_each_tenant,
                a_tenant_sees_nothing_of_another,
                a_refused_operation_leaves_nothing,
                an_operation_without_changes_takes_no_revision,
                a_commit_without_a_record_is_refused,
                a_commit_that_fails_leaves_nothing,
                a_tenant_whose_first_commit_failed_is_unknown,
                overlapping_updates_lose_none,
                an_operation_sees_all_commits_before_it,
                a_member_that_panics_harms_no_other,
                a_member_that_fails_harms_no_other,
                a_query_that_panics_harms_no_other,
                a_query_sees_one_snapshot,
                a_caller_that_stops_waiting_harms_no_other,
                what_was_answered_is_read_by_whoever_asks_next,
                a_closed_store_answers_unavailable,
            ],
            time: [
                time_never_goes_backwards,
                rows_records_and_requests_of_a_commit_have_one_time,
            ],
        })+
    };
    (@backend $backend:ident, $harness:expr, $($topic:ident: [$($case:ident),+ $(,)?],)+) => {
        mod $backend {
            #[allow(unused_imports, reason = "the harness may be made of anything")]
            use super::*;
            $(mod $topic {
                #[allow(unused_imports, reason = "the harness may be made of anything")]
                use super::*;
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    $crate::storage::conformance::$topic::$case(&$harness).await;
                })+
            })+
        }
    };
}

/// Makes a test of each case about data that outlives the store; see
/// [`storage_conformance!`](crate::storage_conformance).
#[macro_export]
macro_rules! storage_conformance_durable {
    ($($backend:ident => $harness:expr;)+) => {
        $($crate::storage_conformance! { @backend $backend, $harness,
            durability: [
                what_was_committed_is_there_after_a_reopening,
                the_identity_is_the_same_after_a_reopening,
                time_does_not_go_backwards_over_a_reopening,
                a_damaged_record_is_corrupt_and_the_rest_is_readable,
                a_damaged_row_is_corrupt_and_the_rest_is_readable,
                a_damaged_request_is_corrupt,
                a_damaged_record_is_not_overwritten,
                a_record_moved_to_another_key_is_corrupt,
                a_record_moved_to_another_tenant_is_corrupt,
                a_row_moved_to_another_number_is_corrupt,
                a_request_moved_to_another_tenant_is_corrupt,
            ],
        })+
    };
}
