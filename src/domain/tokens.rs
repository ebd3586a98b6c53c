//! What a history costs a model, roughly: tokens estimated from text alone.
//!
//! The estimate knows no model. It counts only what a reader would see: the text
//! view of each message, without roles, calls and media.

use std::borrow::Cow;

use super::message::{BlockKind, Content, Item, Message};

/// How many letters of a word cost a token.
const LETTERS_A_TOKEN: u64 = 5;

/// The zeros of all decimal digits of Unicode 17; each is followed by its nine
/// others.
const ZEROS: [char; 77] = [
    '\u{30}',
    '\u{660}',
    '\u{6f0}',
    '\u{7c0}',
    '\u{966}',
    '\u{9e6}',
    '\u{a66}',
    '\u{ae6}',
    '\u{b66}',
    '\u{be6}',
    '\u{c66}',
    '\u{ce6}',
    '\u{d66}',
    '\u{de6}',
    '\u{e50}',
    '\u{ed0}',
    '\u{f20}',
    '\u{1040}',
    '\u{1090}',
    '\u{17e0}',
    '\u{1810}',
    '\u{1946}',
    '\u{19d0}',
    '\u{1a80}',
    '\u{1a90}',
    '\u{1b50}',
    '\u{1bb0}',
    '\u{1c40}',
    '\u{1c50}',
    '\u{a620}',
    '\u{a8d0}',
    '\u{a900}',
    '\u{a9d0}',
    '\u{a9f0}',
    '\u{aa50}',
    '\u{abf0}',
    '\u{ff10}',
    '\u{104a0}',
    '\u{10d30}',
    '\u{10d40}',
    '\u{11066}',
    '\u{110f0}',
    '\u{11136}',
    '\u{111d0}',
    '\u{112f0}',
    '\u{11450}',
    '\u{114d0}',
    '\u{11650}',
    '\u{116c0}',
    '\u{116d0}',
    '\u{116da}',
    '\u{11730}',
    '\u{118e0}',
    '\u{11950}',
    '\u{11bf0}',
    '\u{11c50}',
    '\u{11d50}',
    '\u{11da0}',
    '\u{11de0}',
    '\u{11f50}',
    '\u{16130}',
    '\u{16a60}',
    '\u{16ac0}',
    '\u{16b50}',
    '\u{16d70}',
    '\u{1ccf0}',
    '\u{1d7ce}',
    '\u{1d7d8}',
    '\u{1d7e2}',
    '\u{1d7ec}',
    '\u{1d7f6}',
    '\u{1e140}',
    '\u{1e2f0}',
    '\u{1e4f0}',
    '\u{1e5f1}',
    '\u{1e950}',
    '\u{1fbf0}',
];

/// The text of a message: a plain text itself, of blocks every text and every
/// reasoning, with nothing between them. Calls, media and the rest add nothing.
#[must_use]
pub fn text_view(message: &Message) -> Cow<'_, str> {
    let blocks = match &message.content {
        Content::Text(text) => return Cow::Borrowed(text),
        Content::Blocks(blocks) => blocks,
    };
    let mut texts = blocks.iter().filter_map(|block| match &block.kind {
        BlockKind::Text { text } => Some(&**text),
        BlockKind::Reasoning { reasoning } => Some(&**reasoning),
        BlockKind::Image(_)
        | BlockKind::Audio(_)
        | BlockKind::File(_)
        | BlockKind::ToolCall(_)
        | BlockKind::NonStandard { .. } => None,
    });
    let mut view = Cow::Borrowed(texts.next().unwrap_or_default());
    for text in texts {
        view.to_mut().push_str(text);
    }
    view
}

/// How many tokens a text costs.
///
/// A word of ASCII letters, with one part after an apostrophe, costs one token
/// for each five characters begun; a run of decimal digits, with one part after a
/// dot, costs one; any other character that is not white space costs one.
#[must_use]
pub fn estimate_tokens(text: &str) -> u64 {
    let is_letter = |c: char| c.is_ascii_alphabetic();
    let mut tokens = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if is_letter(first) {
            let length = run_with_part(rest, '\'', is_letter);
            // ASCII: a byte is a character.
            tokens += (length as u64).div_ceil(LETTERS_A_TOKEN);
            length
        } else if is_decimal(first) {
            tokens += 1;
            run_with_part(rest, '.', is_decimal)
        } else {
            tokens += u64::from(!first.is_whitespace());
            first.len_utf8()
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    tokens
}

/// How many tokens the text of a history costs. An item that is no message costs
/// nothing.
#[must_use]
pub fn history_tokens(items: &[Item]) -> u64 {
    items
        .iter()
        .filter_map(Item::as_message)
        .map(|message| estimate_tokens(&text_view(message)))
        .sum()
}

/// The length in bytes of a run at the start of `text` and, if `joint` and
/// another run follow, of these too.
fn run_with_part(text: &str, joint: char, is_member: impl Fn(char) -> bool) -> usize {
    let after = text.trim_start_matches(&is_member);
    let part = after
        .strip_prefix(joint)
        .filter(|part| part.starts_with(&is_member));
    let end = part.map_or(after, |part| part.trim_start_matches(&is_member));
    text.len() - end.len()
}

/// Whether a character is a decimal digit of any script (Unicode `Nd`).
fn is_decimal(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    let zeros = ZEROS.partition_point(|&zero| zero <= c);
    let zero = zeros.checked_sub(1).and_then(|at| ZEROS.get(at));
    zero.is_some_and(|&zero| u32::from(c) - u32::from(zero) < 10)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_cost_by_length_and_the_rest_by_character() {
        for (text, tokens) in [
            ("", 0),
            ("a", 1),
            ("abcde", 1),
            ("abcdef", 2),
            ("don't", 1),
            ("rock'n'roll", 2 + 1 + 1),
            ("don''t", 1 + 1 + 1 + 1),
            ("don’t", 1 + 1 + 1),
            ("3.14.15", 1 + 1 + 1),
            ("1'5", 1 + 1 + 1),
            ("x.5", 1 + 1 + 1),
            ("٣٫١", 1 + 1 + 1),
            ("٣.١", 1),
            ("²²", 2),
            ("éé", 2),
            ("\u{a0}\u{3000}\u{2028}", 0),
        ] {
            assert_eq!(estimate_tokens(text), tokens, "{text:?}");
        }
    }

    #[test]
    fn digits_of_every_script_are_known() {
        assert!(ZEROS.is_sorted());
        for digit in [
            '0',
            '9',
            '٠',
            '९',
            '９',
            '\u{1d7d8}',
            '\u{1d7ff}',
            '\u{1fbf9}',
        ] {
            assert!(is_decimal(digit), "{digit:?}");
        }
        for other in [
            '/',
            ':',
            '²',
            '½',
            'Ⅳ',
            '一',
            '\u{965}',
            '\u{970}',
            '\u{1d800}',
        ] {
            assert!(!is_decimal(other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn parts_between_blanks_add_up(a: String, b: String) {
            let both = format!("{a} {b}");
            prop_assert_eq!(estimate_tokens(&both), estimate_tokens(&a) + estimate_tokens(&b));
        }

        #[test]
        fn a_text_costs_at_most_its_characters(text: String) {
            let characters = text.chars().filter(|c| !c.is_whitespace()).count();
            prop_assert!(estimate_tokens(&text) <= characters as u64);
        }
    }
}
