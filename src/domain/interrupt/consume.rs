//! Claims of reviewers, and the right to act on an answer.

use std::time::Duration;

use super::{Claim, Consumption, Interrupt, InterruptState};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{ConsumerId, PrincipalName};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::time::Timestamp;

impl Interrupt {
    /// Takes it for a while, so that other reviewers leave it.
    ///
    /// # Errors
    ///
    /// [`Reason::NotPending`], [`Reason::Claimed`].
    pub fn take(&mut self, by: &PrincipalName, ttl: Duration, now: Timestamp) -> Result<()> {
        if self.state.is_terminal() {
            return Err(Error::new(
                Reason::NotPending,
                "nobody waits for an answer any more; there is nothing to claim",
            ));
        }
        self.check_claim(by, now)?;
        self.claim = Some(Claim {
            by: by.clone(),
            expires_at: now.after(ttl),
        });
        self.updated_at = now;
        Ok(())
    }

    /// Gives a claim back. Says whether there was one.
    ///
    /// # Errors
    ///
    /// [`Reason::Claimed`] when it is another's, unless `any` is.
    pub fn give_back(&mut self, by: &PrincipalName, any: bool, now: Timestamp) -> Result<bool> {
        if !any {
            self.check_claim(by, now)?;
        }
        let had = self.claim.take().is_some();
        if had {
            self.updated_at = now;
        }
        Ok(had)
    }

    /// Refuses whoever has not claimed what another has.
    pub(super) fn check_claim(&self, by: &PrincipalName, now: Timestamp) -> Result<()> {
        match &self.claim {
            Some(claim) if claim.by != *by && now < claim.expires_at => Err(Error::new(
                Reason::Claimed,
                "another reviewer has claimed it",
            )
            .with("by", &claim.by)
            .with("expire_time_us", claim.expires_at.as_micros())),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes the right to act on the answer, where no thread does. The same
    /// consumer again renews it and keeps its token.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptsPending`], [`Reason::NotPending`],
    /// [`Reason::AlreadyConsumed`].
    pub fn consume(&mut self, consumer: &ConsumerId, ttl: Duration, now: Timestamp) -> Result<()> {
        self.check_own_consumer()?;
        if self.state == InterruptState::Pending {
            return Err(Error::new(
                Reason::InterruptsPending,
                "nobody has decided yet; wait with AwaitDecision",
            ));
        }
        if !self.is_live() {
            return Err(Error::new(
                Reason::NotPending,
                "there is nothing left to act on; look at the interrupt's state and consumption",
            ));
        }
        let expires_at = Some(now.after(ttl));
        match &mut self.consumption {
            Some(held) if held.consumer == *consumer => held.expires_at = expires_at,
            Some(held) if held.expires_at.is_none_or(|at| now < at) => {
                let error = Error::new(
                    Reason::AlreadyConsumed,
                    "another consumer acts on this decision",
                )
                .with("consumer_id", &held.consumer);
                return Err(match held.expires_at {
                    Some(at) => error.with("expire_time_us", at.as_micros()),
                    None => error,
                });
            }
            Some(_) | None => {
                self.consumption = Some(Consumption {
                    consumer: consumer.clone(),
                    token: Stamp::THIS_COMMIT,
                    at: now,
                    expires_at,
                    acknowledged_at: None,
                    outcome: String::new(),
                });
            }
        }
        self.updated_at = now;
        Ok(())
    }

    /// Records what came of the answer. Says whether that was news: the holder of
    /// the token may say it again.
    ///
    /// # Errors
    ///
    /// [`Reason::NotPending`], [`Reason::Fenced`].
    pub fn acknowledge(&mut self, token: Revision, outcome: &str, now: Timestamp) -> Result<bool> {
        self.check_own_consumer()?;
        let Some(held) = &mut self.consumption else {
            return Err(Error::new(
                Reason::NotPending,
                "nobody has consumed this decision; call ConsumeDecision first",
            ));
        };
        if !held.token.is(token) {
            return Err(Error::new(
                Reason::Fenced,
                "this token is no longer the decision's; another consumer acts on it",
            ));
        }
        if held.acknowledged_at.is_some() {
            return Ok(false);
        }
        held.acknowledged_at = Some(now);
        held.expires_at = None;
        outcome.clone_into(&mut held.outcome);
        self.updated_at = now;
        Ok(true)
    }

    fn check_own_consumer(&self) -> Result<()> {
        if self.thread.is_some() {
            return Err(Error::new(
                Reason::NotPending,
                "a thread waits for this decision; ResumeThread consumes it",
            ));
        }
        Ok(())
    }
}
