//! State: named JSON values in order, and how a change meets what is stored.

use serde::{Deserialize, Serialize};

/// How a given state meets the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateMode {
    /// Given keys are set, keys to delete are removed, others stay.
    Merge,
    /// Only what is given remains.
    Replace,
}

/// A change of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateUpdate {
    /// How it meets the stored state.
    pub mode: StateMode,
    /// Keys, unique, and JSON texts, in order.
    pub entries: Vec<(String, String)>,
    /// Keys to remove, when merging.
    pub delete_keys: Vec<String>,
}

/// Where a value of the new state comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<T> {
    /// It stands already, under the same key.
    Stored(T),
    /// The given one with this position, which follows on the stored one, if any.
    Given(usize, Option<T>),
}

impl StateUpdate {
    /// The values of the new state, in order, where `stored` are the keys of the
    /// current one with whatever they refer to.
    ///
    /// Merged keys stay where they stood and new ones come after them.
    #[must_use]
    pub fn apply<'a, T: Copy>(&'a self, stored: &[(&'a str, T)]) -> Vec<(&'a str, Source<T>)> {
        let find = |key: &str| stored.iter().find(|(name, _)| *name == key);
        let given = |(at, (key, _)): (usize, &'a (String, String))| {
            let before = find(key).map(|(_, stored)| *stored);
            (key.as_str(), Source::Given(at, before))
        };
        match self.mode {
            StateMode::Replace => self.entries.iter().enumerate().map(given).collect(),
            StateMode::Merge => {
                let position = |key: &str| self.entries.iter().position(|(name, _)| name == key);
                let kept = stored
                    .iter()
                    .filter(|(key, _)| !self.delete_keys.iter().any(|deleted| deleted == key))
                    .map(|(key, stored)| match position(key) {
                        Some(at) => (*key, Source::Given(at, Some(*stored))),
                        None => (*key, Source::Stored(*stored)),
                    });
                let is_new = |key: &str| {
                    find(key).is_none() || self.delete_keys.iter().any(|deleted| deleted == key)
                };
                let added = self
                    .entries
                    .iter()
                    .enumerate()
                    .filter(|(_, (key, _))| is_new(key))
                    .map(given);
                kept.chain(added).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(mode: StateMode, keys: &[&str], delete: &[&str]) -> StateUpdate {
        StateUpdate {
            mode,
            entries: keys
                .iter()
                .map(|key| ((*key).to_owned(), "1".to_owned()))
                .collect(),
            delete_keys: delete.iter().map(|key| (*key).to_owned()).collect(),
        }
    }

    #[test]
    fn a_merge_keeps_the_place_of_known_keys_and_adds_new_ones_after_them() {
        let update = update(StateMode::Merge, &["new", "b"], &["c", "absent"]);
        let merged = update.apply(&[("a", 1), ("b", 2), ("c", 3)]);
        assert_eq!(
            merged,
            [
                ("a", Source::Stored(1)),
                ("b", Source::Given(1, Some(2))),
                ("new", Source::Given(0, None)),
            ]
        );
    }

    #[test]
    fn a_replacement_leaves_only_what_is_given() {
        let update = update(StateMode::Replace, &["b", "a"], &[]);
        let replaced = update.apply(&[("a", 1), ("c", 3)]);
        assert_eq!(
            replaced,
            [
                ("b", Source::Given(0, None)),
                ("a", Source::Given(1, Some(1)))
            ]
        );
    }

    #[test]
    fn a_key_that_is_deleted_and_given_is_set_anew_at_the_end() {
        let update = update(StateMode::Merge, &["a"], &["a"]);
        let merged = update.apply(&[("a", 1), ("b", 2)]);
        assert_eq!(
            merged,
            [("b", Source::Stored(2)), ("a", Source::Given(0, Some(1)))]
        );
    }
}
