//! Which parts of a session a snapshot holds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Field {
    /// The transcript.
    Messages = 0,
    /// The state.
    State = 1,
    /// The system prompt.
    SystemPrompt = 2,
    /// The instructions.
    Instructions = 3,
    /// The plugin states.
    PluginStates = 4,
    /// Input that waits for the next run.
    PendingInput = 5,
}

impl Field {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Messages,
        Self::State,
        Self::SystemPrompt,
        Self::Instructions,
        Self::PluginStates,
        Self::PendingInput,
    ];

    /// Its name in requests and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::State => "state",
            Self::SystemPrompt => "system_prompt",
            Self::Instructions => "instructions",
            Self::PluginStates => "plugin_states",
            Self::PendingInput => "pending_input",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that stands for no field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be messages, state, system_prompt, instructions, plugin_states or pending_input")]
pub struct UnknownField;

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(name: &str) -> Result<Self, UnknownField> {
        Self::ALL
            .into_iter()
            .find(|field| field.name() == name)
            .ok_or(UnknownField)
    }
}

/// A selection to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Messages and state.
    Session,
    /// Everything.
    Full,
}

/// A name that stands for no preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be session or full")]
pub struct UnknownPreset;

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        match name {
            "session" => Ok(Self::Session),
            "full" => Ok(Self::Full),
            _ => Err(UnknownPreset),
        }
    }
}

/// A set of fields. What is selected and absent from the session stays absent
/// from the snapshot; what is present and empty stays present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSet(u8);

impl FieldSet {
    /// Whether a field is in it.
    #[must_use]
    pub const fn contains(self, field: Field) -> bool {
        self.0 & field.bit() != 0
    }

    /// Whether no field is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its fields, in the order of their declaration.
    pub fn iter(self) -> impl Iterator<Item = Field> {
        Field::ALL
            .into_iter()
            .filter(move |field| self.contains(*field))
    }
}

impl FromIterator<Field> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |bits, field| bits | field.bit()))
    }
}

/// The selection: the preset's fields (none without one) and `include`, but
/// without `exclude`, which wins.
#[must_use]
pub fn select(preset: Option<Preset>, include: FieldSet, exclude: FieldSet) -> FieldSet {
    let base = match preset {
        None => FieldSet::default(),
        Some(Preset::Session) => FieldSet::from_iter([Field::Messages, Field::State]),
        Some(Preset::Full) => FieldSet::from_iter(Field::ALL),
    };
    FieldSet((base.0 | include.0) & !exclude.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(bits: u8) -> FieldSet {
        Field::ALL
            .into_iter()
            .filter(|field| bits & field.bit() != 0)
            .collect()
    }

    #[test]
    fn names_come_back_and_others_are_refused() {
        for field in Field::ALL {
            assert_eq!(field.name().parse(), Ok(field));
        }
        for name in ["", "systemPrompt", "Messages", "metadata"] {
            assert_eq!(name.parse::<Field>(), Err(UnknownField), "{name}");
        }
        assert_eq!("session".parse(), Ok(Preset::Session));
        assert_eq!("full".parse(), Ok(Preset::Full));
        assert_eq!("".parse::<Preset>(), Err(UnknownPreset));
    }

    #[test]
    fn presets_are_bases() {
        let none = FieldSet::default();
        assert!(select(None, none, none).is_empty());
        assert!(
            select(Some(Preset::Session), none, none)
                .iter()
                .eq([Field::Messages, Field::State])
        );
        assert!(select(Some(Preset::Full), none, none).iter().eq(Field::ALL));
    }

    proptest! {
        #[test]
        fn exclude_wins_and_nothing_comes_unasked(include in 0u8..64, exclude in 0u8..64) {
            let (include, exclude) = (set(include), set(exclude));
            for preset in [None, Some(Preset::Session), Some(Preset::Full)] {
                let base = select(preset, FieldSet::default(), FieldSet::default());
                for field in Field::ALL {
                    let wanted = (base.contains(field) || include.contains(field)) && !exclude.contains(field);
                    prop_assert_eq!(select(preset, include, exclude).contains(field), wanted);
                }
            }
        }
    }
}
