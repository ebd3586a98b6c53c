//! Tells whoever waits for a tenant's commits that there are some.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::domain::id::Tenant;
use crate::domain::revision::Revision;

/// The newest revision of each tenant that somebody asked about.
#[derive(Debug, Default)]
pub(super) struct Wake {
    tenants: Mutex<HashMap<Tenant, watch::Sender<Revision>>>,
}

impl Wake {
    /// A receiver of a tenant's revisions; the first value is a floor.
    pub(super) fn subscribe(&self, tenant: &Tenant) -> watch::Receiver<Revision> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants
            .entry(tenant.clone())
            .or_insert_with(|| watch::Sender::new(Revision::ZERO))
            .subscribe()
    }

    /// Says that a commit is durable.
    pub(super) fn committed(&self, tenant: &Tenant, revision: Revision) {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = tenants.get(tenant) {
            sender.send_if_modified(|newest| {
                let later = revision > *newest;
                if later {
                    *newest = revision;
                }
                later
            });
        }
    }
}
