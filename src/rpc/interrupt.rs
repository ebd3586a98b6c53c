//! `InterruptService` over the wire.

use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::auth::{caller, still_valid};
use super::convert::common::{
    agent, duration, id, inward_duration, page_size, request_id, thread_id, time, user, uuid,
};
use super::convert::interrupt as convert;
use super::convert::timeline::goodbye;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{ConsumerId, InterruptId, SessionId, SessionRef, ThreadRef};
use crate::domain::interrupt::Interrupt;
use crate::domain::revision::Revision;
use crate::proto::v1::{self, interrupt_service_server::InterruptService};
use crate::service::caller::Caller;
use crate::service::checkpoint::lease_ttl;
use crate::service::engine::Engine;
use crate::service::interrupt::{
    Acknowledge, Asking, Cancel, Claim, Consume, Create, DEFAULT_CLAIM, Interrupts, MAX_CLAIM,
    MIN_CLAIM, Unclaim,
};
use crate::service::watch::{Awaited, Event, InterruptWatch, Said, Start, Watches};

/// The longest poll.
const MAX_WAIT: Duration = Duration::from_secs(50);
/// The most answers in one batch.
const MAX_BATCH: usize = 1000;

/// Serves `InterruptService`.
#[derive(Debug)]
pub struct InterruptApi {
    engine: Engine,
    interrupts: Interrupts,
    watches: Watches,
}

impl InterruptApi {
    /// Serves the interrupts of an engine's store.
    #[must_use]
    pub fn new(engine: Engine, watches: Watches) -> Self {
        Self {
            interrupts: Interrupts::new(engine.clone()),
            engine,
            watches,
        }
    }

    fn outward(&self, caller: &Caller, interrupt: &Interrupt, revision: Revision) -> v1::Interrupt {
        convert::outward(interrupt, revision, caller, self.engine.sealer())
    }

    /// An interrupt as a commit left it.
    async fn after(&self, caller: &Caller, id: InterruptId, at: Revision) -> Result<v1::Interrupt> {
        let (interrupt, revision) = self.interrupts.get_at(caller, id, at).await?;
        Ok(self.outward(caller, &interrupt, revision))
    }
}

fn interrupt_id(text: &str) -> Result<InterruptId> {
    uuid("interrupt_id", text, InterruptId::from_uuid)
}

/// A stream of answers.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl InterruptService for InterruptApi {
    async fn create_interrupt(
        &self,
        request: Request<v1::CreateInterruptRequest>,
    ) -> Result<Response<v1::CreateInterruptResponse>, Status> {
        let caller = caller(&request)?;
        let v1::CreateInterruptRequest {
            agent_id,
            user_id,
            session_id,
            thread_id: thread,
            interrupt,
            fencing_token,
            request_id: request,
        } = request.into_inner();
        let agent = agent(&caller, "agent_id", &agent_id)?;
        let user = match user_id.as_deref() {
            Some(text) => user(&caller, "user_id", Some(text))?,
            None => caller.user.clone(),
        };
        let session = session_id
            .as_deref()
            .map(|text| id::<SessionId>("session_id", text))
            .transpose()?
            .map(|session| SessionRef {
                agent: agent.clone(),
                user,
                session,
            });
        let thread = thread
            .as_deref()
            .map(|text| thread_id("thread_id", text))
            .transpose()?
            .map(|thread| ThreadRef {
                agent: agent.clone(),
                thread,
            });
        let spec = interrupt.ok_or_else(|| Error::argument("interrupt", "is required"))?;
        let create = Create {
            asking: Asking {
                agent,
                session,
                thread,
                run: None,
                checkpoint: None,
                execution_key: None,
            },
            spec: convert::spec("interrupt", spec)?,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fencing_token),
            id: self.interrupts.new_id(),
        };
        let done = self
            .interrupts
            .create(&caller, request_id(&request)?, create)
            .await?;
        Ok(Response::new(v1::CreateInterruptResponse {
            interrupt: Some(self.after(&caller, done.receipt.id, done.revision).await?),
            deduplicated: done.receipt.deduplicated,
            revision: done.revision.get(),
        }))
    }

    async fn get_interrupt(
        &self,
        request: Request<v1::GetInterruptRequest>,
    ) -> Result<Response<v1::GetInterruptResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetInterruptRequest { interrupt_id: id } = request.into_inner();
        let (interrupt, revision) = self.interrupts.get(&caller, interrupt_id(&id)?).await?;
        Ok(Response::new(v1::GetInterruptResponse {
            interrupt: Some(self.outward(&caller, &interrupt, revision)),
            revision: revision.get(),
        }))
    }

    async fn list_interrupts(
        &self,
        request: Request<v1::ListInterruptsRequest>,
    ) -> Result<Response<v1::ListInterruptsResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListInterruptsRequest {
            filter,
            order,
            page_size: size,
            page_token,
        } = request.into_inner();
        let filter = convert::filter("filter", filter, &caller)?;
        let order = convert::order("order", order)?;
        let size = page_size("page_size", size)?;
        let page = self
            .interrupts
            .list(&caller, filter, order, size, &page_token)
            .await?;
        Ok(Response::new(v1::ListInterruptsResponse {
            interrupts: page
                .items
                .iter()
                .map(|(interrupt, revision)| self.outward(&caller, interrupt, *revision))
                .collect(),
            next_page_token: page.next,
            revision: page.revision.get(),
        }))
    }

    type WatchInterruptsStream = Answers<v1::WatchInterruptsResponse>;

    async fn watch_interrupts(
        &self,
        request: Request<v1::WatchInterruptsRequest>,
    ) -> Result<Response<Self::WatchInterruptsStream>, Status> {
        let caller = caller(&request)?;
        let valid = still_valid(&request);
        let v1::WatchInterruptsRequest { filter, start } = request.into_inner();
        let start = match start {
            Some(v1::watch_interrupts_request::Start::InitialState(true)) => Start::InitialState,
            Some(v1::watch_interrupts_request::Start::Cursor(cursor)) => Start::Cursor(cursor),
            Some(v1::watch_interrupts_request::Start::Now(true)) => Start::Now,
            Some(
                v1::watch_interrupts_request::Start::InitialState(false)
                | v1::watch_interrupts_request::Start::Now(false),
            )
            | None => {
                return Err(
                    Error::argument("start", "must be initial_state, cursor or now").into(),
                );
            }
        };
        let watch = InterruptWatch {
            filter: convert::filter("filter", filter, &caller)?,
        };
        let stream = self.watches.watch(&caller, watch, start, valid).await?;
        let engine = self.engine.clone();
        let answers = stream.map(move |said| {
            use v1::watch_interrupts_response::Event as Wire;

            let Said {
                cursor,
                revision,
                event,
            } = said?;
            let outward = |interrupt: &Interrupt| {
                convert::outward(interrupt, revision, &caller, engine.sealer())
            };
            let event = match event {
                Event::Snapshot(item) => Wire::Snapshot(outward(&item)),
                Event::Changed(item) => Wire::Changed(outward(&item)),
                Event::Left(item) => Wire::Left(outward(&item)),
                Event::Deleted(never) => match never {},
                Event::Synced => Wire::Synced(v1::Synced {}),
                Event::Progress => Wire::Progress(v1::Progress {}),
                Event::Goodbye(farewell) => Wire::Goodbye(goodbye(farewell)),
            };
            Ok(v1::WatchInterruptsResponse {
                cursor,
                revision: revision.get(),
                event: Some(event),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn decide_interrupt(
        &self,
        request: Request<v1::DecideInterruptRequest>,
    ) -> Result<Response<v1::DecideInterruptResponse>, Status> {
        let caller = caller(&request)?;
        let v1::DecideInterruptRequest {
            interrupt_id,
            etag,
            answer,
            comment,
            request_id: request,
        } = request.into_inner();
        let given = v1::InterruptAnswer {
            interrupt_id,
            etag,
            answer,
            comment,
        };
        let given = convert::given_answer("", given, &caller, self.engine.sealer())?;
        let id = given.interrupt;
        let done = self
            .interrupts
            .decide(&caller, request_id(&request)?, vec![given])
            .await?;
        let interrupt = self.after(&caller, id, done.revision).await?;
        Ok(Response::new(v1::DecideInterruptResponse {
            decision: interrupt.decisions.last().cloned(),
            interrupt: Some(interrupt),
            revision: done.revision.get(),
        }))
    }

    async fn batch_decide(
        &self,
        request: Request<v1::BatchDecideRequest>,
    ) -> Result<Response<v1::BatchDecideResponse>, Status> {
        let caller = caller(&request)?;
        let v1::BatchDecideRequest {
            decisions,
            request_id: request,
        } = request.into_inner();
        super::convert::common::limit("decisions", "answers", decisions.len(), MAX_BATCH)?;
        if decisions.is_empty() {
            return Err(Error::argument("decisions", "must not be empty").into());
        }
        let answers = decisions
            .into_iter()
            .enumerate()
            .map(|(at, given)| {
                convert::given_answer(
                    &format!("decisions[{at}]"),
                    given,
                    &caller,
                    self.engine.sealer(),
                )
            })
            .collect::<Result<Vec<_>>>()?;
        let done = self
            .interrupts
            .decide(&caller, request_id(&request)?, answers)
            .await?;
        let mut interrupts = Vec::with_capacity(done.receipt.len());
        for id in done.receipt {
            interrupts.push(self.after(&caller, id, done.revision).await?);
        }
        Ok(Response::new(v1::BatchDecideResponse {
            interrupts,
            revision: done.revision.get(),
        }))
    }

    type AwaitDecisionStream = Answers<v1::AwaitDecisionResponse>;

    async fn await_decision(
        &self,
        request: Request<v1::AwaitDecisionRequest>,
    ) -> Result<Response<Self::AwaitDecisionStream>, Status> {
        let caller = caller(&request)?;
        let valid = still_valid(&request);
        let v1::AwaitDecisionRequest { interrupt_id: id } = request.into_inner();
        let stream = self
            .watches
            .await_decision(&caller, interrupt_id(&id)?, valid)
            .await?;
        let engine = self.engine.clone();
        let answers = stream.map(move |awaited| {
            Ok(match awaited? {
                Awaited::State(interrupt, revision) => v1::AwaitDecisionResponse {
                    interrupt: Some(convert::outward(
                        &interrupt,
                        revision,
                        &caller,
                        engine.sealer(),
                    )),
                    revision: revision.get(),
                    goodbye: None,
                },
                Awaited::Goodbye(farewell) => v1::AwaitDecisionResponse {
                    interrupt: None,
                    revision: 0,
                    goodbye: Some(goodbye(farewell)),
                },
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn poll_decision(
        &self,
        request: Request<v1::PollDecisionRequest>,
    ) -> Result<Response<v1::PollDecisionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::PollDecisionRequest {
            interrupt_id: id,
            wait,
        } = request.into_inner();
        let wait = wait
            .as_ref()
            .map(|span| inward_duration("wait", span))
            .transpose()?
            .unwrap_or_default();
        let (interrupt, revision) = self
            .watches
            .poll_decision(&caller, interrupt_id(&id)?, wait.min(MAX_WAIT))
            .await?;
        Ok(Response::new(v1::PollDecisionResponse {
            interrupt: Some(self.outward(&caller, &interrupt, revision)),
            revision: revision.get(),
        }))
    }

    async fn claim_interrupt(
        &self,
        request: Request<v1::ClaimInterruptRequest>,
    ) -> Result<Response<v1::ClaimInterruptResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ClaimInterruptRequest {
            interrupt_id: id,
            ttl,
            request_id: request,
        } = request.into_inner();
        let ttl = ttl
            .as_ref()
            .map(|span| inward_duration("ttl", span))
            .transpose()?
            .unwrap_or(DEFAULT_CLAIM);
        if !(MIN_CLAIM..=MAX_CLAIM).contains(&ttl) {
            return Err(Error::argument("ttl", "must be from 5 seconds to 24 hours").into());
        }
        let claim = Claim {
            interrupt: interrupt_id(&id)?,
            ttl,
        };
        let done = self
            .interrupts
            .claim(&caller, request_id(&request)?, claim)
            .await?;
        Ok(Response::new(v1::ClaimInterruptResponse {
            interrupt: Some(self.after(&caller, done.receipt, done.revision).await?),
            revision: done.revision.get(),
        }))
    }

    async fn unclaim_interrupt(
        &self,
        request: Request<v1::UnclaimInterruptRequest>,
    ) -> Result<Response<v1::UnclaimInterruptResponse>, Status> {
        let caller = caller(&request)?;
        let v1::UnclaimInterruptRequest {
            interrupt_id: id,
            request_id: request,
        } = request.into_inner();
        let unclaim = Unclaim {
            interrupt: interrupt_id(&id)?,
        };
        let done = self
            .interrupts
            .unclaim(&caller, request_id(&request)?, unclaim)
            .await?;
        Ok(Response::new(v1::UnclaimInterruptResponse {
            interrupt: Some(self.after(&caller, done.receipt, done.revision).await?),
            revision: done.revision.get(),
        }))
    }

    async fn consume_decision(
        &self,
        request: Request<v1::ConsumeDecisionRequest>,
    ) -> Result<Response<v1::ConsumeDecisionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ConsumeDecisionRequest {
            interrupt_id: id_text,
            consumer_id,
            ttl,
            request_id: request,
        } = request.into_inner();
        let ttl = lease_ttl(
            "ttl",
            ttl.as_ref()
                .map(|span| inward_duration("ttl", span))
                .transpose()?,
        )?;
        let consume = Consume {
            interrupt: interrupt_id(&id_text)?,
            consumer: id::<ConsumerId>("consumer_id", &consumer_id)?,
            ttl,
        };
        let done = self
            .interrupts
            .consume(&caller, request_id(&request)?, consume)
            .await?;
        let token = done.receipt.token.revision(done.revision);
        Ok(Response::new(v1::ConsumeDecisionResponse {
            interrupt: Some(
                self.after(&caller, done.receipt.interrupt, done.revision)
                    .await?,
            ),
            fencing_token: self
                .interrupts
                .seal_token(&caller, done.receipt.interrupt, token),
            expire_time: Some(time(done.receipt.expires_at)),
            ttl: Some(duration(ttl)),
            revision: done.revision.get(),
        }))
    }

    async fn acknowledge_decision(
        &self,
        request: Request<v1::AcknowledgeDecisionRequest>,
    ) -> Result<Response<v1::AcknowledgeDecisionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::AcknowledgeDecisionRequest {
            interrupt_id: id,
            fencing_token,
            outcome,
            request_id: request,
        } = request.into_inner();
        let interrupt = interrupt_id(&id)?;
        if fencing_token.is_empty() {
            let message = "send the token that ConsumeDecision gave";
            return Err(Error::new(Reason::TokenRequired, message)
                .at("fencing_token")
                .into());
        }
        let token = self
            .interrupts
            .open_token(&caller, interrupt, &fencing_token);
        let acknowledge = Acknowledge {
            interrupt,
            token,
            outcome,
        };
        let done = self
            .interrupts
            .acknowledge(&caller, request_id(&request)?, acknowledge)
            .await?;
        Ok(Response::new(v1::AcknowledgeDecisionResponse {
            interrupt: Some(self.after(&caller, done.receipt, done.revision).await?),
            revision: done.revision.get(),
        }))
    }

    async fn cancel_interrupt(
        &self,
        request: Request<v1::CancelInterruptRequest>,
    ) -> Result<Response<v1::CancelInterruptResponse>, Status> {
        let caller = caller(&request)?;
        let v1::CancelInterruptRequest {
            interrupt_id: id,
            etag,
            comment,
            request_id: request,
        } = request.into_inner();
        let interrupt = interrupt_id(&id)?;
        let seen = if etag.is_empty() {
            None
        } else {
            Some(self.interrupts.open_etag(&caller, interrupt, &etag)?)
        };
        let done = self
            .interrupts
            .cancel(
                &caller,
                request_id(&request)?,
                Cancel {
                    interrupt,
                    seen,
                    comment,
                },
            )
            .await?;
        Ok(Response::new(v1::CancelInterruptResponse {
            interrupt: Some(self.after(&caller, done.receipt, done.revision).await?),
            revision: done.revision.get(),
        }))
    }
}
