//! The tool rules of agents, which only an admin sets.

use async_trait::async_trait;
use serde::Serialize;
use uuid::Uuid;

use super::Checkpoints;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::AgentId;
use crate::domain::interrupt::DecisionKind;
use crate::domain::revision::{Revision, Stamp};
use crate::domain::thread::{ToolMode, ToolRule, ToolRules};
use crate::service::caller::{Caller, Role};
use crate::service::engine::{Command, Done};
use crate::storage::entities::tool_rules_key;
use crate::storage::typed::{ChangeSet, Loaded, load, load_at};
use crate::storage::{Abort, Query, Reads};

/// Replaces the rules of an agent.
#[derive(Debug, Serialize)]
pub struct SetToolRules {
    /// Whose.
    pub agent: AgentId,
    /// All of them.
    pub rules: Vec<ToolRule>,
    /// The etag that was seen, if there were rules.
    pub etag: Option<Revision>,
    /// Replace whatever is there.
    pub overwrite: bool,
}

#[async_trait]
impl Command for SetToolRules {
    const METHOD: &'static str = "CheckpointService/SetToolRules";
    type Receipt = AgentId;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<AgentId, Abort> {
        caller.require(&[Role::Admin])?;
        check(&self.rules)?;
        let found = load::<ToolRules>(reads, &tool_rules_key(&self.agent)).await?;
        let rules = ToolRules {
            agent: self.agent.clone(),
            etag: Stamp::THIS_COMMIT,
            rules: self.rules.clone(),
        };
        match found {
            Some(mut found) => {
                match self.etag {
                    Some(seen) if !found.value.etag.is(seen) => {
                        return Err(Error::new(
                            Reason::EtagMismatch,
                            "the rules have changed; read them again",
                        )
                        .into());
                    }
                    Some(_) => {}
                    None if self.overwrite => {}
                    None => return Err(Error::precondition_required("etag, overwrite").into()),
                }
                found.value = rules;
                changes.update(&found)?;
            }
            None => changes.update(&Loaded::fresh(rules))?,
        }
        Ok(self.agent.clone())
    }
}

/// Checks rules for sense.
fn check(rules: &[ToolRule]) -> Result<()> {
    for (at, rule) in rules.iter().enumerate() {
        let field = |name: &str| format!("rules[{at}].{name}");
        if rule.tool.is_empty() {
            return Err(Error::argument(field("tool_name"), "must not be empty"));
        }
        if rules
            .iter()
            .take(at)
            .any(|earlier| earlier.tool == rule.tool)
        {
            return Err(Error::argument(field("tool_name"), "has a rule already"));
        }
        if rule.policy.required_approvals < 1 {
            return Err(Error::argument(
                field("policy.required_approvals"),
                "must be at least 1",
            ));
        }
        if rule.mode == ToolMode::Hold && rule.allowed.contains(&DecisionKind::Suspend) {
            return Err(Error::argument(
                field("allowed_decisions"),
                "SUSPEND is always allowed and is not listed",
            ));
        }
    }
    Ok(())
}

/// The rules of an agent, as they were at a revision.
#[derive(Debug)]
struct Rules {
    agent: AgentId,
    at: Revision,
}

#[async_trait]
impl Query for Rules {
    type Output = Option<ToolRules>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Option<ToolRules>, Abort> {
        Ok(
            load_at::<ToolRules>(reads, &tool_rules_key(&self.agent), self.at)
                .await?
                .map(|rules| rules.value),
        )
    }
}

impl Checkpoints {
    /// Replaces the rules of an agent.
    ///
    /// # Errors
    ///
    /// [`Reason::PermissionDenied`], [`Reason::EtagMismatch`],
    /// [`Reason::PreconditionRequired`], [`Reason::ArgumentInvalid`].
    pub async fn set_tool_rules(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        set: SetToolRules,
    ) -> Result<Done<Option<ToolRules>>> {
        let Done {
            revision,
            at,
            receipt,
            replayed,
        } = self.engine.submit(caller, request_id, set).await?;
        let rules = self
            .engine
            .read(
                &caller.tenant,
                Rules {
                    agent: receipt,
                    at: revision,
                },
            )
            .await?;
        Ok(Done {
            revision,
            at,
            receipt: rules,
            replayed,
        })
    }

    /// The rules of an agent; `None` when it never had any.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn tool_rules(&self, caller: &Caller, agent: AgentId) -> Result<Option<ToolRules>> {
        self.engine
            .read(
                &caller.tenant,
                Rules {
                    agent,
                    at: Revision::LATEST,
                },
            )
            .await
    }
}
