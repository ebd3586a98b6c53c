//! Lists that stay as they were while a client turns their pages.
//!
//! The first page fixes a revision, and every later page shows the list as it was
//! then. What has not changed since is found by the current index; what has is
//! found in the feed and judged by its version at that revision.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::domain::error::{Error, Reason};
use crate::domain::revision::Revision;
use crate::storage::typed::{Loaded, load, load_at};
use crate::storage::{Abort, Direction, Entity, Index, Key, Reads, Stretch};

/// How many changes a list may lie behind before it has to be started anew.
const MAX_BEHIND: usize = 20_000;

/// How many entries of the index are read at a time.
const CHUNK: usize = 256;

/// Which records, in which order.
#[derive(Clone, Debug)]
pub struct Order {
    /// The order.
    pub index: Index,
    /// The part of it.
    pub prefix: Bytes,
    /// Which way.
    pub direction: Direction,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The place of its last item.
    pub after: Vec<u8>,
    /// The revision that the list is of.
    pub at: Revision,
}

/// A page of records.
#[derive(Clone, Debug)]
pub struct Listed<T> {
    /// The records, as they were at the revision.
    pub items: Vec<Loaded<T>>,
    /// Where the next page starts; `None` on the last.
    pub next: Option<Position>,
    /// The revision that the list is of.
    pub at: Revision,
}

/// A page of the records that match, from a position on.
///
/// # Errors
///
/// [`Reason::PageTokenInvalid`] when too much has happened since the first page.
pub async fn page<T: Entity>(
    reads: &mut dyn Reads,
    order: &Order,
    from: Option<&Position>,
    limit: usize,
    matches: impl Fn(&T) -> bool + Send,
) -> Result<Listed<T>, Abort> {
    let newest = reads.revision().await?;
    let at = from.map_or(newest, |from| from.at);
    let after = from.map(|from| Bytes::copy_from_slice(&from.after));
    let (changed, mut found) =
        changed_since::<T>(reads, order, after.as_ref(), at, &matches).await?;

    let mut unchanged = 0;
    let mut stretch = Stretch {
        prefix: order.prefix.clone(),
        after: after.clone(),
        direction: order.direction,
        limit: CHUNK,
    };
    while unchanged <= limit {
        let hits = reads.index(order.index, &stretch).await?;
        let whole = hits.len() < CHUNK;
        stretch.after = hits.last().map(|hit| hit.place.clone());
        for hit in hits {
            if changed.contains(&hit.key) {
                continue;
            }
            let Some(loaded) = load::<T>(reads, &hit.key).await? else {
                continue;
            };
            if matches(&loaded.value) {
                unchanged += 1;
                found.push((hit.place, loaded));
                if unchanged > limit {
                    break;
                }
            }
        }
        if whole {
            break;
        }
    }

    found.sort_by(|(a, _), (b, _)| match order.direction {
        Direction::Forward => a.cmp(b),
        Direction::Backward => b.cmp(a),
    });
    let more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| more);
    let next = last.map(|(place, _)| Position {
        after: place.to_vec(),
        at,
    });
    Ok(Listed {
        items: found.into_iter().map(|(_, loaded)| loaded).collect(),
        next,
        at,
    })
}

/// Records of the list.
type Found<T> = Vec<(Bytes, Loaded<T>)>;

/// What has changed since the revision, and what of it was in the list then.
async fn changed_since<T: Entity>(
    reads: &mut dyn Reads,
    order: &Order,
    after: Option<&Bytes>,
    at: Revision,
    matches: &(impl Fn(&T) -> bool + Send),
) -> Result<(BTreeSet<Key>, Found<T>), Abort> {
    let feed = reads
        .feed(&[T::KIND], at, Revision::LATEST, MAX_BEHIND)
        .await?;
    if feed.len() >= MAX_BEHIND {
        return Err(Error::new(
            Reason::PageTokenInvalid,
            "too much has changed since the first page; start from the first page",
        )
        .at("page_token")
        .into());
    }
    let changed: BTreeSet<Key> = feed.into_iter().map(|entry| entry.key).collect();
    let mut found = Vec::new();
    for key in &changed {
        let Some(then) = load_at::<T>(reads, key, at).await? else {
            continue;
        };
        let place = then
            .value
            .index()
            .into_iter()
            .find(|entry| entry.index == order.index && entry.place.starts_with(&order.prefix))
            .map(|entry| entry.place);
        let Some(place) = place else { continue };
        let beyond = after.is_none_or(|after| match order.direction {
            Direction::Forward => place > *after,
            Direction::Backward => place < *after,
        });
        if beyond && matches(&then.value) {
            found.push((place, then));
        }
    }
    Ok((changed, found))
}
