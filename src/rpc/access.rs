//! Which roles may call which RPC.
//!
//! Some calls ask for more than a role, by what the request says: decisions in
//! `ResumeThread` need the reviewer role too, seeds in `LoadSession` the agent
//! role, and `RepairGuard` the right `host` of whoever is no admin. Their handlers
//! check that.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::service::caller::Role;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The path of the RPC in a request.
    pub path: &'static str,
    /// A caller needs one of them.
    pub roles: &'static [Role],
    /// Whether the answer is a stream that may stay open.
    pub stream: bool,
}

const ANYBODY: &[Role] = &Role::ALL;
const AGENT: &[Role] = &[Role::Agent];
const AGENT_ADMIN: &[Role] = &[Role::Agent, Role::Admin];
const AGENT_VIEWER: &[Role] = &[Role::Agent, Role::Viewer];
const AGENT_VIEWER_ADMIN: &[Role] = &[Role::Agent, Role::Viewer, Role::Admin];
const REVIEWER: &[Role] = &[Role::Reviewer];
const REVIEWER_ADMIN: &[Role] = &[Role::Reviewer, Role::Admin];
const ADMIN: &[Role] = &[Role::Admin];

/// Every RPC. What is not listed here cannot be called.
pub const TABLE: &[Access] = &[
    unary("/adjourn.v1.SessionService/SaveSession", AGENT),
    unary("/adjourn.v1.SessionService/LoadSession", ANYBODY),
    unary("/adjourn.v1.SessionService/GetSession", ANYBODY),
    unary("/adjourn.v1.SessionService/ListSessions", ANYBODY),
    unary("/adjourn.v1.SessionService/UpdateSession", AGENT),
    unary("/adjourn.v1.SessionService/DeleteSession", AGENT_ADMIN),
    unary("/adjourn.v1.SessionService/AppendMessages", AGENT),
    unary("/adjourn.v1.SessionService/ListMessages", ANYBODY),
    unary("/adjourn.v1.SessionService/SetPins", AGENT),
    unary("/adjourn.v1.SessionService/EditMessage", AGENT),
    unary("/adjourn.v1.SessionService/BranchSession", AGENT),
    unary("/adjourn.v1.SessionService/CommitRun", AGENT),
    unary("/adjourn.v1.SessionService/CreateSnapshot", AGENT),
    unary("/adjourn.v1.SessionService/ListSnapshots", ANYBODY),
    unary("/adjourn.v1.SessionService/GetSnapshot", ANYBODY),
    unary("/adjourn.v1.SessionService/DeleteSnapshot", AGENT_ADMIN),
    unary("/adjourn.v1.SessionService/RestoreSnapshot", AGENT),
    unary("/adjourn.v1.SessionService/BeginRestore", AGENT),
    unary("/adjourn.v1.SessionService/CommitRestore", AGENT),
    unary("/adjourn.v1.SessionService/AbortRestore", AGENT),
    unary("/adjourn.v1.SessionService/RepairGuard", AGENT_ADMIN),
    unary("/adjourn.v1.SessionService/GetWriter", AGENT_VIEWER_ADMIN),
    unary("/adjourn.v1.SessionService/ManageConversation", AGENT),
    unary("/adjourn.v1.SessionService/EstimateTokens", AGENT_VIEWER),
    unary("/adjourn.v1.SessionService/AppendJournal", AGENT),
    unary("/adjourn.v1.SessionService/ListJournal", ANYBODY),
    unary("/adjourn.v1.SessionService/CountJournal", ANYBODY),
    unary("/adjourn.v1.MemoryService/LoadMemory", ANYBODY),
    unary("/adjourn.v1.MemoryService/AppendMemory", AGENT),
    unary("/adjourn.v1.MemoryService/ReplaceMemory", AGENT),
    unary("/adjourn.v1.MemoryService/ClearMemory", AGENT),
    unary("/adjourn.v1.MemoryService/GetMemory", ANYBODY),
    unary("/adjourn.v1.MemoryService/ListMemories", ANYBODY),
    unary("/adjourn.v1.MemoryService/ConfigureMemory", AGENT),
    unary("/adjourn.v1.MemoryService/DeleteMemory", AGENT_ADMIN),
    unary(
        "/adjourn.v1.MemoryService/PlanCompaction",
        AGENT_VIEWER_ADMIN,
    ),
    unary("/adjourn.v1.MemoryService/CompactMemory", AGENT),
    unary("/adjourn.v1.MemoryService/UndoCompaction", AGENT),
    unary("/adjourn.v1.MemoryService/GetSummarized", ANYBODY),
    unary("/adjourn.v1.CheckpointService/SaveCheckpoint", AGENT),
    unary("/adjourn.v1.CheckpointService/GetCheckpoint", ANYBODY),
    unary("/adjourn.v1.CheckpointService/ListCheckpoints", ANYBODY),
    unary("/adjourn.v1.CheckpointService/GetThread", ANYBODY),
    unary("/adjourn.v1.CheckpointService/ListThreads", ANYBODY),
    unary("/adjourn.v1.CheckpointService/DeleteThread", AGENT_ADMIN),
    unary("/adjourn.v1.CheckpointService/CopyThread", AGENT),
    unary("/adjourn.v1.CheckpointService/PruneCheckpoints", ADMIN),
    unary("/adjourn.v1.CheckpointService/PauseThread", AGENT),
    unary("/adjourn.v1.CheckpointService/AcquireThread", AGENT),
    unary("/adjourn.v1.CheckpointService/SuspendThread", AGENT),
    unary("/adjourn.v1.CheckpointService/ResumeThread", AGENT),
    unary("/adjourn.v1.CheckpointService/RenewLease", AGENT),
    unary("/adjourn.v1.CheckpointService/ReleaseThread", AGENT),
    unary("/adjourn.v1.CheckpointService/GateToolCall", AGENT),
    unary("/adjourn.v1.CheckpointService/FinishToolCall", AGENT),
    unary("/adjourn.v1.CheckpointService/ResolveInDoubt", REVIEWER),
    unary("/adjourn.v1.CheckpointService/SetToolRules", ADMIN),
    unary("/adjourn.v1.CheckpointService/GetToolRules", ANYBODY),
    unary("/adjourn.v1.CheckpointService/ListGrants", ANYBODY),
    unary("/adjourn.v1.CheckpointService/RevokeGrant", REVIEWER_ADMIN),
    unary("/adjourn.v1.CheckpointService/CancelRun", AGENT_ADMIN),
    unary("/adjourn.v1.InterruptService/CreateInterrupt", AGENT),
    unary("/adjourn.v1.InterruptService/GetInterrupt", ANYBODY),
    unary("/adjourn.v1.InterruptService/ListInterrupts", ANYBODY),
    stream("/adjourn.v1.InterruptService/WatchInterrupts", ANYBODY),
    unary("/adjourn.v1.InterruptService/DecideInterrupt", REVIEWER),
    unary("/adjourn.v1.InterruptService/BatchDecide", REVIEWER),
    stream("/adjourn.v1.InterruptService/AwaitDecision", ANYBODY),
    unary("/adjourn.v1.InterruptService/PollDecision", ANYBODY),
    unary("/adjourn.v1.InterruptService/ClaimInterrupt", REVIEWER),
    unary(
        "/adjourn.v1.InterruptService/UnclaimInterrupt",
        REVIEWER_ADMIN,
    ),
    unary("/adjourn.v1.InterruptService/ConsumeDecision", AGENT),
    unary("/adjourn.v1.InterruptService/AcknowledgeDecision", AGENT),
    unary("/adjourn.v1.InterruptService/CancelInterrupt", AGENT_ADMIN),
    unary("/adjourn.v1.TimelineService/ListEntries", ANYBODY),
    stream("/adjourn.v1.TimelineService/WatchTimeline", ANYBODY),
    unary("/adjourn.v1.TimelineService/AppendEntry", AGENT),
];

/// Services that answer whoever can connect, since they tell nothing of a tenant:
/// probes of an orchestrator have no key.
const PUBLIC: [&str; 2] = ["/grpc.health.v1.Health/", "/grpc.reflection."];

/// What the RPC at `path` needs; `None` if there is no such RPC.
#[must_use]
pub fn access(path: &str) -> Option<&'static Access> {
    static BY_PATH: LazyLock<HashMap<&'static str, &'static Access>> =
        LazyLock::new(|| TABLE.iter().map(|access| (access.path, access)).collect());
    BY_PATH.get(path).copied()
}

/// Whether the call at `path` needs no caller.
#[must_use]
pub fn is_public(path: &str) -> bool {
    PUBLIC.iter().any(|service| path.starts_with(service))
}

const fn unary(path: &'static str, roles: &'static [Role]) -> Access {
    Access {
        path,
        roles,
        stream: false,
    }
}

const fn stream(path: &'static str, roles: &'static [Role]) -> Access {
    Access {
        path,
        roles,
        stream: true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::{FileDescriptorProto, FileDescriptorSet};

    use super::*;
    use crate::proto::FILE_DESCRIPTOR_SET;

    /// The number of `service` in a file, and of `method` in a service, as paths of
    /// source locations have them.
    const SERVICE: i32 = 6;
    const METHOD: i32 = 2;

    /// Path, whether it streams, and comment of every RPC that the server offers.
    fn methods() -> Vec<(String, bool, String)> {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut found = Vec::new();
        for file in &set.file {
            for (s, service) in file.service.iter().enumerate() {
                // Users run the summarizer, and we call it.
                if service.name() == "SummarizerService" {
                    continue;
                }
                for (m, method) in service.method.iter().enumerate() {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    found.push((path, method.server_streaming(), comment(file, s, m)));
                }
            }
        }
        found
    }

    fn comment(file: &FileDescriptorProto, service: usize, method: usize) -> String {
        let at = [
            SERVICE,
            i32::try_from(service).unwrap(),
            METHOD,
            i32::try_from(method).unwrap(),
        ];
        let source = file.source_code_info.as_ref().unwrap();
        let location = source.location.iter().find(|location| location.path == at);
        location
            .unwrap()
            .leading_comments()
            .replace('\n', " ")
            .replace("  ", " ")
    }

    #[test]
    fn every_rpc_has_an_entry_and_every_entry_an_rpc() {
        let offered: BTreeSet<_> = methods().into_iter().map(|(path, ..)| path).collect();
        let listed: BTreeSet<_> = TABLE.iter().map(|access| access.path.to_owned()).collect();
        assert_eq!(offered, listed);
        assert_eq!(TABLE.len(), listed.len(), "an RPC is listed twice");
        assert!(listed.len() > 70);
    }

    #[test]
    fn the_table_says_what_the_documentation_says() {
        for (path, stream, comment) in methods() {
            let access = access(&path).unwrap();
            assert_eq!(access.stream, stream, "{path}");
            let (_, roles) = comment.split_once("Roles: ").expect(&path);
            let roles = roles.split(['.', ';']).next().unwrap();
            let mut documented: Vec<_> = roles
                .split([',', ' ', '('])
                .filter_map(Role::from_name)
                .collect();
            if path.ends_with("/RepairGuard") {
                assert_eq!(
                    roles,
                    "admin, or the writer's own key with the right `host`"
                );
                documented.insert(0, Role::Agent);
            }
            assert_eq!(access.roles, documented, "{path}");
        }
    }

    #[test]
    fn an_agent_decides_nothing_and_sets_no_policy() {
        for access in TABLE {
            let decides = ["DecideInterrupt", "BatchDecide", "ResolveInDoubt"];
            let governs = ["SetToolRules", "RevokeGrant", "PruneCheckpoints"];
            let (_, name) = access.path.rsplit_once('/').unwrap();
            if decides.contains(&name) {
                assert_eq!(access.roles, REVIEWER, "{name}");
            }
            if governs.contains(&name) {
                assert!(!access.roles.contains(&Role::Agent), "{name}");
            }
        }
    }

    #[test]
    fn what_is_unknown_is_neither_listed_nor_public() {
        assert_eq!(access("/adjourn.v1.SessionService/Nothing"), None);
        assert!(!is_public("/adjourn.v1.SessionService/SaveSession"));
        assert!(!is_public("/grpc.health.v1.HealthOther/Check"));
        assert!(is_public("/grpc.health.v1.Health/Check"));
        assert!(is_public(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        ));
    }
}
