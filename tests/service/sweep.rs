//! Expiry: late is allowed, by mistake is not.

use std::time::Duration;

use adjourn::domain::error::Reason;
use adjourn::domain::id::InterruptId;
use adjourn::domain::interrupt::{
    Answer, DecisionSource, Interrupt, InterruptSpec, InterruptState, OnExpire, PolicyRequest,
};
use adjourn::domain::time::Clock as _;
use adjourn::domain::timeline::{EntryKind, Link};
use adjourn::service::sweep::{Options, Sweeper};

use super::world::{World, approve, may, reviewer};

const SECOND: Duration = Duration::from_secs(1);

/// A sweeper, and its monotonic clock.
struct Sweep<'a> {
    world: &'a World,
    sweeper: Sweeper,
    monotonic: Duration,
}

impl<'a> Sweep<'a> {
    fn of(world: &'a World) -> Self {
        Self {
            world,
            sweeper: Sweeper::new(world.engine.clone(), Options::default()),
            monotonic: Duration::ZERO,
        }
    }

    /// Lets time pass on both clocks, then looks.
    async fn after(&mut self, span: Duration) -> usize {
        self.world.clock.advance(span);
        self.monotonic += span;
        self.sweeper.pass(self.monotonic).await.unwrap()
    }

    /// Looks every two seconds for so long.
    async fn through(&mut self, span: Duration) -> usize {
        let mut expired = 0;
        let end = self.monotonic + span;
        while self.monotonic < end {
            expired += self.after(2 * SECOND).await;
        }
        expired
    }

    /// Past the time after the start in which nothing expires.
    async fn settled(&mut self) {
        assert_eq!(self.through(40 * SECOND).await, 0);
    }

    /// A question that is to be answered within `span`.
    async fn ask(&self, span: Duration) -> InterruptId {
        let spec = InterruptSpec {
            expires_at: Some(self.world.clock.now().after(span)),
            ..may("book", "{}")
        };
        self.world.ask(spec).await
    }

    async fn state(&self, id: InterruptId) -> InterruptState {
        self.world.get(id).await.state
    }
}

#[tokio::test]
async fn an_interrupt_expires_once_two_looks_saw_it_overdue() {
    for world in World::each() {
        let mut sweep = Sweep::of(&world);
        sweep.settled().await;
        let (soon, late) = (sweep.ask(3 * SECOND).await, sweep.ask(60 * SECOND).await);
        let never = world.ask(may("look", "{}")).await;

        assert_eq!(sweep.after(2 * SECOND).await, 0);
        assert_eq!(sweep.after(2 * SECOND).await, 0, "seen once");
        assert_eq!(sweep.state(soon).await, InterruptState::Pending);
        assert_eq!(sweep.after(2 * SECOND).await, 1, "seen twice");
        assert_eq!(sweep.state(soon).await, InterruptState::Expired);
        assert_eq!(sweep.after(2 * SECOND).await, 0);
        assert_eq!(sweep.state(late).await, InterruptState::Pending);
        assert_eq!(sweep.state(never).await, InterruptState::Pending);
    }
}

#[tokio::test]
async fn an_overdue_interrupt_cannot_be_decided_before_the_sweep_either() {
    for world in World::each() {
        let sweep = Sweep::of(&world);
        let id = sweep.ask(SECOND).await;
        world.clock.advance(SECOND);
        let answer = world.answer(id, approve()).await;
        let rita = reviewer("rita");
        let refused = world.interrupts.decide(&rita, None, vec![answer]);
        assert_eq!(refused.await.unwrap_err().reason, Reason::InterruptOverdue);
    }
}

#[tokio::test]
async fn nothing_expires_right_after_a_start() {
    for world in World::each() {
        let mut sweep = Sweep::of(&world);
        let id = sweep.ask(SECOND).await;
        assert_eq!(sweep.through(28 * SECOND).await, 0);
        assert_eq!(sweep.state(id).await, InterruptState::Pending);
        assert_eq!(sweep.through(4 * SECOND).await, 1);
        assert_eq!(sweep.state(id).await, InterruptState::Expired);
    }
}

#[tokio::test]
async fn nothing_expires_right_after_the_clock_jumped() {
    for world in World::each() {
        let mut sweep = Sweep::of(&world);
        sweep.settled().await;
        let id = sweep.ask(3600 * SECOND).await;
        sweep.after(2 * SECOND).await;

        // The store's clock alone: somebody set it wrong.
        world.clock.advance(2 * 3600 * SECOND);
        assert_eq!(sweep.through(30 * SECOND).await, 0);
        assert_eq!(sweep.state(id).await, InterruptState::Pending);
        assert_eq!(sweep.through(4 * SECOND).await, 1, "it stayed so");
    }
}

#[tokio::test]
async fn expiry_does_what_the_policy_says_and_says_so_on_the_timeline() {
    for world in World::each() {
        let mut sweep = Sweep::of(&world);
        sweep.settled().await;
        let session = world.session("s").await;
        let expires_at = Some(world.clock.now().after(SECOND));
        let spec = InterruptSpec {
            expires_at,
            policy: PolicyRequest {
                on_expire: Some(OnExpire::Reject),
                ..PolicyRequest::default()
            },
            ..may("book", "{}")
        };
        let rejected = world.ask_in(spec, &session).await;
        let spec = InterruptSpec {
            expires_at: expires_at.map(|at| at.after(Duration::from_millis(1))),
            ..may("pay", "{}")
        };
        let expired = world.ask_in(spec, &session).await;
        assert_eq!(sweep.through(6 * SECOND).await, 2);

        let interrupt: Interrupt = world.get(rejected).await;
        assert_eq!(interrupt.state, InterruptState::Resolved);
        let decision = interrupt.resolution().unwrap();
        assert!(matches!(decision.answer, Answer::Reject { .. }));
        assert_eq!(decision.source, DecisionSource::Timeout);
        assert!(decision.actor.is_server());
        let interrupt = world.get(expired).await;
        assert_eq!(interrupt.state, InterruptState::Expired);
        assert!(interrupt.resolution().is_none());

        let told = world.timeline(&session).await;
        let told: Vec<_> = told
            .iter()
            .map(|entry| {
                (
                    entry.rev,
                    entry.kind,
                    entry.label.as_str(),
                    entry.link.clone(),
                )
            })
            .collect();
        let link = |id| Some(Link::Interrupt(id));
        assert_eq!(
            told,
            [
                (1, EntryKind::Interrupt, "book", link(rejected)),
                (2, EntryKind::Interrupt, "pay", link(expired)),
                (3, EntryKind::Decision, "REJECT", link(rejected)),
                (4, EntryKind::Decision, "EXPIRE", link(expired)),
            ]
        );
    }
}

#[tokio::test]
async fn of_two_sweepers_one_expires_it() {
    for world in World::each() {
        let (mut one, mut other) = (Sweep::of(&world), Sweep::of(&world));
        one.ask(SECOND).await;
        let mut expired = 0;
        for _ in 0..20 {
            world.clock.advance(2 * SECOND);
            for sweep in [&mut one, &mut other] {
                sweep.monotonic += 2 * SECOND;
                expired += sweep.sweeper.pass(sweep.monotonic).await.unwrap();
            }
        }
        assert_eq!(expired, 1);
    }
}

#[tokio::test]
async fn a_sweeper_passes_over_what_was_decided_in_time() {
    for world in World::each() {
        let mut sweep = Sweep::of(&world);
        sweep.settled().await;
        let id = sweep.ask(5 * SECOND).await;
        sweep.after(2 * SECOND).await;
        world.decide(id, approve()).await;
        assert_eq!(sweep.through(20 * SECOND).await, 0);
        assert_eq!(sweep.state(id).await, InterruptState::Resolved);
    }
}
