//! Which thread ids are refused.

use adjourn::domain::id::ThreadId;

use crate::vectors::cases;

#[test]
fn thread_ids_are_checked_as_recorded() {
    for case in cases("thread_ids") {
        let id = case.input["threadId"].as_str().unwrap();
        let refused = case.expected.get("error").is_some();
        assert_eq!(ThreadId::try_from(id).is_err(), refused, "{}", case.name);
    }
}
