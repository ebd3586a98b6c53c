//! The opaque strings that callers hold: etags, fencing tokens, page tokens and
//! watch cursors.
//!
//! Each is bound to the tenant and to what it is for by a keyed digest, so that
//! one that was made up, or made for something else, is never taken for real.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::caller::Caller;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{InterruptId, Tenant, ThreadRef};
use crate::domain::revision::Revision;
use crate::domain::thread::Token;
use crate::storage::entities::interrupt_key;
use crate::storage::{Identity, Key, Kind};

/// How many bytes of the keyed digest a string carries.
const MAC_BYTES: usize = 12;

/// What a sealed revision is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// An etag of content.
    Etag = 1,
    /// An etag of what stands beside the content: listing metadata, settings.
    ListingEtag = 2,
    /// The token of whoever consumes an interrupt that no thread resumes.
    Consumption = 3,
}

/// Makes and opens sealed strings with a store's secret.
#[derive(Clone)]
pub struct Sealer {
    identity: Identity,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl Sealer {
    /// A sealer for the clients of the store that `identity` belongs to.
    #[must_use]
    pub const fn new(identity: Identity) -> Self {
        Self { identity }
    }

    /// The store's epoch.
    #[must_use]
    pub const fn epoch(&self) -> [u8; 8] {
        self.identity.epoch
    }

    fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let mut mac = [0; MAC_BYTES];
        // A key of any length will do for HMAC, so there is nothing to fail.
        let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(&self.identity.secret) else {
            return mac;
        };
        for part in parts {
            hmac.update(&(part.len() as u64).to_le_bytes());
            hmac.update(part);
        }
        for (to, from) in mac.iter_mut().zip(hmac.finalize().into_bytes()) {
            *to = from;
        }
        mac
    }

    /// The etag or token of a record.
    #[must_use]
    pub fn seal_revision(
        &self,
        tenant: &Tenant,
        purpose: Purpose,
        kind: Kind,
        key: &Key,
        revision: Revision,
    ) -> String {
        let number = revision.get().to_be_bytes();
        let mac = self.mac(&[
            tenant.as_str().as_bytes(),
            &[purpose as u8, kind as u8],
            key.as_bytes(),
            &number,
        ]);
        URL_SAFE_NO_PAD.encode([number.as_slice(), &mac].concat())
    }

    /// The revision in an etag or token of a record.
    ///
    /// A string that was not made for this record opens to a revision that no
    /// record ever has, and so is out of date like any other.
    #[must_use]
    pub fn open_revision(
        &self,
        tenant: &Tenant,
        purpose: Purpose,
        kind: Kind,
        key: &Key,
        sealed: &str,
    ) -> Revision {
        const NONE: Revision = Revision::new(-1);
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(sealed) else {
            return NONE;
        };
        let Some((number, _)) = bytes.split_first_chunk::<8>() else {
            return NONE;
        };
        let revision = Revision::new(i64::from_be_bytes(*number));
        let genuine = self.seal_revision(tenant, purpose, kind, key, revision);
        if genuine.as_bytes().ct_eq(sealed.as_bytes()).into() {
            revision
        } else {
            NONE
        }
    }

    /// A sealed value, such as a page token or a cursor. `use_for` says what for,
    /// and what it is bound to, such as the hash of a filter.
    #[must_use]
    pub fn seal(&self, tenant: &Tenant, use_for: &[u8], value: &impl Serialize) -> String {
        // The values that are sealed are small structs of numbers and strings.
        let body = serde_json::to_vec(value).unwrap_or_default();
        let mac = self.mac(&[tenant.as_str().as_bytes(), use_for, &body]);
        URL_SAFE_NO_PAD.encode([mac.as_slice(), &body].concat())
    }

    /// The value in a sealed string that was made for this tenant and use.
    #[must_use]
    pub fn open<T: DeserializeOwned>(
        &self,
        tenant: &Tenant,
        use_for: &[u8],
        sealed: &str,
    ) -> Option<T> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (mac, body) = bytes.split_first_chunk::<MAC_BYTES>()?;
        let genuine = self.mac(&[tenant.as_str().as_bytes(), use_for, body]);
        if bool::from(genuine.ct_eq(mac)) {
            serde_json::from_slice(body).ok()
        } else {
            None
        }
    }

    /// The fencing token that the commit `revision` granted for a thread.
    #[must_use]
    pub fn seal_token(&self, tenant: &Tenant, thread: &ThreadRef, revision: Revision) -> String {
        self.seal(
            tenant,
            b"token",
            &Token {
                thread: Some(thread.clone()),
                revision,
            },
        )
    }

    /// The fencing token in `sealed`: none in an empty string, and
    /// [`Token::UNKNOWN`] in one that is no token.
    #[must_use]
    pub fn open_token(&self, tenant: &Tenant, sealed: &str) -> Option<Token> {
        if sealed.is_empty() {
            return None;
        }
        Some(
            self.open(tenant, b"token", sealed)
                .unwrap_or(Token::UNKNOWN),
        )
    }

    /// The position in a page token of the list `method` with the filter `filter`.
    ///
    /// # Errors
    ///
    /// [`Reason::PageTokenInvalid`].
    pub fn open_page<T: DeserializeOwned>(
        &self,
        tenant: &Tenant,
        method: &str,
        filter: &impl Serialize,
        token: &str,
    ) -> Result<Option<T>> {
        if token.is_empty() {
            return Ok(None);
        }
        self.open(tenant, &page_use(method, filter), token).map(Some).ok_or_else(|| {
            Error::new(
                Reason::PageTokenInvalid,
                "this page token is of another list or filter, or no page token at all; start from the first page",
            )
            .at("page_token")
        })
    }

    /// A page token of the list `method` with the filter `filter`.
    #[must_use]
    pub fn seal_page(
        &self,
        tenant: &Tenant,
        method: &str,
        filter: &impl Serialize,
        position: &impl Serialize,
    ) -> String {
        self.seal(tenant, &page_use(method, filter), position)
    }
}

fn page_use(method: &str, filter: &impl Serialize) -> Vec<u8> {
    [b"page ".as_slice(), method.as_bytes(), b" ", &hash(filter)].concat()
}

/// The first eight bytes of the SHA-256 of a value, to tell filters apart.
#[must_use]
pub fn hash(value: &impl Serialize) -> [u8; 8] {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let digest = Sha256::digest(&body);
    let mut short = [0; 8];
    for (to, from) in short.iter_mut().zip(digest) {
        *to = from;
    }
    short
}

/// An interrupt's etag, to send.
#[must_use]
pub fn interrupt_etag(sealer: &Sealer, caller: &Caller, id: InterruptId, etag: Revision) -> String {
    sealer.seal_revision(
        &caller.tenant,
        Purpose::Etag,
        Kind::Interrupt,
        &interrupt_key(id),
        etag,
    )
}

/// An interrupt's etag, as it was sent.
#[must_use]
pub fn open_interrupt_etag(
    sealer: &Sealer,
    caller: &Caller,
    id: InterruptId,
    etag: &str,
) -> Revision {
    sealer.open_revision(
        &caller.tenant,
        Purpose::Etag,
        Kind::Interrupt,
        &interrupt_key(id),
        etag,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer() -> Sealer {
        Sealer::new(Identity {
            epoch: [1; 8],
            secret: [2; 32],
        })
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::try_from(name.to_owned()).unwrap()
    }

    #[test]
    fn an_etag_is_of_its_tenant_purpose_kind_and_record_only() {
        let (sealer, a, key) = (sealer(), tenant("a"), Key::of(&[b"k"]));
        let etag = sealer.seal_revision(&a, Purpose::Etag, Kind::Session, &key, Revision::new(7));
        let open = |tenant: &Tenant, purpose, kind, key: &Key| {
            sealer.open_revision(tenant, purpose, kind, key, &etag)
        };
        assert_eq!(open(&a, Purpose::Etag, Kind::Session, &key).get(), 7);
        assert_eq!(
            open(&tenant("b"), Purpose::Etag, Kind::Session, &key).get(),
            -1
        );
        assert_eq!(
            open(&a, Purpose::Consumption, Kind::Session, &key).get(),
            -1
        );
        assert_eq!(open(&a, Purpose::Etag, Kind::Thread, &key).get(), -1);
        assert_eq!(
            open(&a, Purpose::Etag, Kind::Session, &Key::of(&[b"l"])).get(),
            -1
        );
        assert_eq!(
            sealer
                .open_revision(&a, Purpose::Etag, Kind::Session, &key, "garbage")
                .get(),
            -1
        );
    }

    #[test]
    fn a_page_token_of_another_filter_is_refused() {
        let (sealer, a) = (sealer(), tenant("a"));
        let token = sealer.seal_page(&a, "ListSessions", &"x", &42);
        assert_eq!(
            sealer.open_page::<i32>(&a, "ListSessions", &"x", &token),
            Ok(Some(42))
        );
        assert_eq!(
            sealer.open_page::<i32>(&a, "ListSessions", &"x", ""),
            Ok(None)
        );
        for wrong in [
            sealer.open_page::<i32>(&a, "ListSessions", &"y", &token),
            sealer.open_page::<i32>(&a, "ListThreads", &"x", &token),
            sealer.open_page::<i32>(&tenant("b"), "ListSessions", &"x", &token),
            sealer.open_page::<i32>(&a, "ListSessions", &"x", "junk"),
        ] {
            assert_eq!(wrong.unwrap_err().reason, Reason::PageTokenInvalid);
        }
    }
}
