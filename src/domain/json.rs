//! JSON text at the edge: what is refused, and when two texts mean the same.
//!
//! JSON travels and is stored as text, byte for byte, so nothing here turns it
//! into a tree: a tree would lose duplicate keys and the digits of numbers. One
//! scanner reads the text once; in its second mode it writes the canonical form
//! on the way.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// How deep arrays and objects may nest: `[]` is 1 deep, a scalar 0.
pub const MAX_DEPTH: usize = 100;

/// Keys that are compared one by one; an object with more of them is sorted.
const FEW_KEYS: usize = 16;

/// Bytes of a path that an error shows.
const MAX_PATH: usize = 256;

/// What goes before an action in its digest. Another canonical form takes
/// another tag.
const ACTION_TAG: &[u8] = b"adjourn.action.v1\0";

const CUT_SHORT: &str = "ends before it is complete";
const KEY_TWICE: &str = "holds the same key twice";
const LONE_SURROGATE: &str = "holds half of a surrogate pair";
const NOT_FINITE: &str = "NaN and Infinity are not JSON";
const NOT_AN_OBJECT: &str = "must be a JSON object";
const TOO_DEEP: &str = "nests more than 100 deep";

/// Why a text was refused, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} (at {path}, byte {offset})")]
pub struct JsonError {
    /// What is wrong. Never quotes a value.
    pub problem: &'static str,
    /// Where, as `$.key[0]["another key"]`; `$` is the whole. Cut after 256 bytes.
    pub path: String,
    /// Where, in bytes from the start of the text.
    pub offset: usize,
}

/// Checks that a text is one JSON value which can be kept.
///
/// Allocates for the keys of objects only.
///
/// # Errors
///
/// Not JSON, text after the value, NaN or Infinity, a key twice in one object
/// (escapes resolved), half of a surrogate pair, or more than [`MAX_DEPTH`] deep.
pub fn check(text: &str) -> Result<(), JsonError> {
    Scanner::new(text, None).whole()?;
    Ok(())
}

/// Checks that a text is a JSON object which can be kept.
///
/// # Errors
///
/// Those of [`check`], and when the value is something else than an object.
pub fn check_object(text: &str) -> Result<(), JsonError> {
    check(text)?;
    let start = text.trim_start();
    if start.starts_with('{') {
        return Ok(());
    }
    Err(Fault::new(NOT_AN_OBJECT, text.len() - start.len()).into())
}

/// The members of a JSON object in their order: the key, escapes resolved, and
/// the text of the value as it stands.
///
/// # Errors
///
/// Those of [`check_object`].
pub fn members(text: &str) -> Result<Vec<(Cow<'_, str>, &str)>, JsonError> {
    check_object(text)?;
    Ok(Scanner::new(text, None).top_members()?)
}

/// The canonical form: equal texts mean the same, and the reverse.
///
/// Keys stand in the order of their code points and there are no blanks. A
/// number is its sign, its digits without zeros at either end, and `e` with the
/// power of ten unless that is 0; it never passes through binary64. A string
/// escapes only what it must.
///
/// # Errors
///
/// Those of [`check`].
pub fn canonical(text: &str) -> Result<String, JsonError> {
    let form = Scanner::new(text, Some(String::with_capacity(text.len()))).whole()?;
    Ok(form.unwrap_or_default())
}

/// Whether two texts mean the same as arguments of a tool: keys in any order,
/// numbers by their exact value, and null or absent the same as `{}`.
///
/// A text that is not JSON equals only itself.
#[must_use]
pub fn equal(a: Option<&str>, b: Option<&str>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) if a == b => true,
        (a, b) => canonical_args(a) == canonical_args(b),
    }
}

/// The identity of an action, SHA-256 over a version tag, the tool's name and
/// the canonical form of its arguments.
///
/// Two actions have the same digest exactly when the names are the same and
/// [`equal`] holds for the arguments.
#[must_use]
pub fn action_digest(tool: &str, args: Option<&str>) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(ACTION_TAG);
    digest.update((tool.len() as u64).to_be_bytes());
    digest.update(tool);
    digest.update(canonical_args(args).as_bytes());
    digest.finalize().into()
}

/// Bytes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// [`action_digest`] in lower-case hexadecimal: how it is stored and shown.
#[must_use]
pub fn action_digest_hex(tool: &str, args: Option<&str>) -> String {
    hex(&action_digest(tool, args))
}

/// The canonical form of a tool's arguments, `{}` where they are null or absent:
/// for comparing one action with many by [`equal`].
///
/// What is not JSON stays as it is, and so differs from every canonical form.
#[must_use]
pub fn canonical_args(args: Option<&str>) -> Cow<'_, str> {
    match args.map(|text| canonical(text).map_or(Cow::Borrowed(text), Cow::Owned)) {
        Some(form) if form != "null" => form,
        _ => Cow::Borrowed("{}"),
    }
}

/// Reads a text from front to back, and writes its canonical form if asked to.
#[derive(Debug)]
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// The members of all objects that are open, the innermost last.
    members: Vec<Member<'a>>,
    form: Option<String>,
}

/// A member of an object that is open.
#[derive(Debug)]
struct Member<'a> {
    key: Cow<'a, str>,
    /// Where the key begins and the value ends in the canonical form.
    start: usize,
    end: usize,
}

/// A string as it stands in the text, without its quotes, found to be sound.
#[derive(Clone, Copy, Debug)]
struct Quoted<'a> {
    raw: &'a str,
    escaped: bool,
}

/// An error on its way out; each level adds its segment.
#[derive(Debug)]
struct Fault {
    problem: &'static str,
    offset: usize,
    /// The innermost first.
    path: Vec<Segment>,
}

#[derive(Debug)]
enum Segment {
    Key(String),
    Index(usize),
}

impl Fault {
    const fn new(problem: &'static str, offset: usize) -> Self {
        Self {
            problem,
            offset,
            path: Vec::new(),
        }
    }

    fn inside(mut self, segment: Segment) -> Self {
        self.path.push(segment);
        self
    }

    fn under(self, key: &str) -> Self {
        self.inside(Segment::Key(key.chars().take(MAX_PATH).collect()))
    }
}

impl From<Fault> for JsonError {
    fn from(fault: Fault) -> Self {
        let mut path = String::from("$");
        for segment in fault.path.iter().rev() {
            match segment {
                Segment::Index(index) => {
                    // Writing to a string cannot fail.
                    let _ = write!(path, "[{index}]");
                }
                Segment::Key(key) if is_plain(key) => {
                    path.push('.');
                    path.push_str(key);
                }
                Segment::Key(key) => {
                    path.push('[');
                    write_string(&mut path, key);
                    path.push(']');
                }
            }
        }
        if path.len() > MAX_PATH {
            path.truncate(path.floor_char_boundary(MAX_PATH));
            path.push('…');
        }
        Self {
            problem: fault.problem,
            path,
            offset: fault.offset,
        }
    }
}

/// Whether a key can stand in a path without quotes.
fn is_plain(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

impl<'a> Scanner<'a> {
    const fn new(text: &'a str, form: Option<String>) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
            members: Vec::new(),
            form,
        }
    }

    /// Reads the one value that the text must be.
    fn whole(mut self) -> Result<Option<String>, Fault> {
        self.blanks();
        self.value()?;
        self.blanks();
        if self.peek().is_some() {
            return Err(self.fault("has text after its end"));
        }
        Ok(self.form)
    }

    /// Splits an object that was checked.
    fn top_members(mut self) -> Result<Vec<(Cow<'a, str>, &'a str)>, Fault> {
        let mut members = Vec::new();
        self.blanks();
        self.enter()?;
        while !self.eat(b'}') {
            if !members.is_empty() {
                self.expect(b',', "needs a comma or a closing brace here")?;
            }
            let key = self.key()?;
            let start = self.at;
            self.value()?;
            members.push((key, self.since(start)));
            self.blanks();
        }
        Ok(members)
    }

    fn value(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => {
                let string = self.string()?;
                if let Some(form) = &mut self.form {
                    write_string(form, &string.resolve());
                }
                Ok(())
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'N' | b'I') => Err(self.fault(NOT_FINITE)),
            Some(_) => Err(self.fault("needs a JSON value here")),
            None => Err(self.fault(CUT_SHORT)),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), Fault> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.fault("needs a JSON value here"));
        }
        self.at += word.len();
        self.write(word);
        Ok(())
    }

    fn array(&mut self) -> Result<(), Fault> {
        self.enter()?;
        self.write("[");
        let mut length = 0;
        while !self.eat(b']') {
            if length > 0 {
                self.expect(b',', "needs a comma or a closing bracket here")?;
                self.blanks();
                self.write(",");
            }
            self.value()
                .map_err(|fault| fault.inside(Segment::Index(length)))?;
            length += 1;
            self.blanks();
        }
        self.write("]");
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self) -> Result<(), Fault> {
        let offset = self.at;
        self.enter()?;
        self.write("{");
        let first = self.members.len();
        while !self.eat(b'}') {
            if self.members.len() > first {
                self.expect(b',', "needs a comma or a closing brace here")?;
            }
            self.member(first)?;
            self.blanks();
        }
        self.close(first, offset)?;
        self.write("}");
        self.depth -= 1;
        Ok(())
    }

    /// Reads a member of the object whose members begin at `first`.
    fn member(&mut self, first: usize) -> Result<(), Fault> {
        self.blanks();
        let offset = self.at;
        let key = self.key()?;

        let earlier = self.members.get(first..).unwrap_or_default();
        if earlier.len() < FEW_KEYS && earlier.iter().any(|member| member.key == key) {
            return Err(Fault::new(KEY_TWICE, offset).under(&key));
        }

        let start = self.written();
        if let Some(form) = &mut self.form {
            write_string(form, &key);
            form.push(':');
        }
        if let Err(fault) = self.value() {
            return Err(fault.under(&key));
        }
        let end = self.written();
        self.members.push(Member { key, start, end });
        Ok(())
    }

    /// Ends the object whose members begin at `first`: no key may come twice,
    /// and the canonical form gets them in order.
    fn close(&mut self, first: usize, offset: usize) -> Result<(), Fault> {
        let members = self.members.get_mut(first..).unwrap_or_default();
        if self.form.is_some() || members.len() > FEW_KEYS {
            members.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            let twice = members.windows(2).find_map(|pair| match pair {
                [a, b] if a.key == b.key => Some(a),
                _ => None,
            });
            if let Some(member) = twice {
                return Err(Fault::new(KEY_TWICE, offset).under(&member.key));
            }
        }
        if let Some(form) = &mut self.form
            && let Some(start) = members.iter().map(|member| member.start).min()
        {
            let mut sorted = String::with_capacity(form.len() - start + members.len());
            for member in &*members {
                if !sorted.is_empty() {
                    sorted.push(',');
                }
                sorted.push_str(form.get(member.start..member.end).unwrap_or_default());
            }
            form.truncate(start);
            form.push_str(&sorted);
        }
        self.members.truncate(first);
        Ok(())
    }

    /// Reads a key and its colon, up to the value.
    fn key(&mut self) -> Result<Cow<'a, str>, Fault> {
        self.blanks();
        match self.peek() {
            Some(b'"') => {}
            Some(_) => return Err(self.fault("needs a key in double quotes here")),
            None => return Err(self.fault(CUT_SHORT)),
        }
        let key = self.string()?.resolve();
        self.blanks();
        if let Err(fault) = self.expect(b':', "needs a colon after the key here") {
            return Err(fault.under(&key));
        }
        self.blanks();
        Ok(key)
    }

    /// Goes into an array or object, up to its first element or its end.
    fn enter(&mut self) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(self.fault(TOO_DEEP));
        }
        self.depth += 1;
        self.at += 1;
        self.blanks();
        Ok(())
    }

    fn string(&mut self) -> Result<Quoted<'a>, Fault> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            let special = self
                .rest()
                .iter()
                .position(|&byte| byte < 0x20 || matches!(byte, b'"' | b'\\'));
            let Some(plain) = special else {
                self.at = self.text.len();
                return Err(self.fault(CUT_SHORT));
            };
            self.at += plain;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.fault("holds a control character that is not escaped")),
            }
        }
        let raw = self.since(start);
        self.at += 1;
        Ok(Quoted { raw, escaped })
    }

    /// Steps over an escape, or two that make a surrogate pair.
    fn escape(&mut self) -> Result<(), Fault> {
        match self.rest().get(1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match unit(self.rest()) {
                Some(0xD800..=0xDBFF) => match unit(self.rest().get(6..).unwrap_or_default()) {
                    Some(0xDC00..=0xDFFF) => {
                        self.at += 12;
                        Ok(())
                    }
                    _ => Err(self.fault(LONE_SURROGATE)),
                },
                Some(0xDC00..=0xDFFF) => Err(self.fault(LONE_SURROGATE)),
                Some(_) => {
                    self.at += 6;
                    Ok(())
                }
                None => Err(self.fault("needs four hexadecimal digits after \\u")),
            },
            Some(_) => Err(self.fault("holds an escape that JSON does not know")),
            None => Err(self.fault(CUT_SHORT)),
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        let negative = self.eat(b'-');
        let whole = match self.peek() {
            Some(b'0') => {
                self.at += 1;
                "0"
            }
            Some(b'N' | b'I') => return Err(self.fault(NOT_FINITE)),
            _ => self.digits()?,
        };
        let fraction = if self.eat(b'.') { self.digits()? } else { "" };
        let mut power = Power::default();
        if self.eat(b'e') || self.eat(b'E') {
            power.negative = self.eat(b'-');
            if !power.negative {
                self.eat(b'+');
            }
            power.digits = self.digits()?;
        }
        if let Some(form) = &mut self.form {
            write_number(form, negative, whole, fraction, power);
        }
        Ok(())
    }

    /// Reads one digit or more.
    fn digits(&mut self) -> Result<&'a str, Fault> {
        let start = self.at;
        self.at += self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if self.at > start {
            return Ok(self.since(start));
        }
        Err(self.fault(if self.peek().is_some() {
            "needs a digit here"
        } else {
            CUT_SHORT
        }))
    }

    fn blanks(&mut self) {
        self.at += self
            .rest()
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
            .count();
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, problem: &'static str) -> Result<(), Fault> {
        if self.eat(byte) {
            return Ok(());
        }
        Err(self.fault(if self.peek().is_some() {
            problem
        } else {
            CUT_SHORT
        }))
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    const fn fault(&self, problem: &'static str) -> Fault {
        Fault::new(problem, self.at)
    }

    fn write(&mut self, text: &str) {
        if let Some(form) = &mut self.form {
            form.push_str(text);
        }
    }

    fn written(&self) -> usize {
        self.form.as_ref().map_or(0, String::len)
    }
}

impl<'a> Quoted<'a> {
    /// The string itself.
    fn resolve(self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut string = String::with_capacity(self.raw.len());
        let mut rest = self.raw;
        while let Some((plain, escape)) = rest.split_once('\\') {
            string.push_str(plain);
            let (character, length) = match escape.as_bytes().first() {
                Some(b'u') => code_point(rest.get(plain.len()..).unwrap_or_default()),
                Some(b'b') => ('\u{8}', 1),
                Some(b'f') => ('\u{c}', 1),
                Some(b'n') => ('\n', 1),
                Some(b'r') => ('\r', 1),
                Some(b't') => ('\t', 1),
                Some(&byte) => (char::from(byte), 1),
                None => break,
            };
            string.push(character);
            rest = escape.get(length..).unwrap_or_default();
        }
        string.push_str(rest);
        Cow::Owned(string)
    }
}

/// The code unit of an escape `\uXXXX` at the start of `bytes`.
fn unit(bytes: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = bytes.get(..6)? else {
        return None;
    };
    digits.iter().try_fold(0, |unit, &digit| {
        Some(unit * 16 + char::from(digit).to_digit(16)?)
    })
}

/// The character of one escape `\uXXXX` or two, and their bytes after the first
/// backslash.
fn code_point(escapes: &str) -> (char, usize) {
    let bytes = escapes.as_bytes();
    let high = unit(bytes).unwrap_or_default();
    if !(0xD800..=0xDBFF).contains(&high) {
        return (
            char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER),
            5,
        );
    }
    let low = unit(bytes.get(6..).unwrap_or_default()).unwrap_or_default();
    let point = 0x1_0000 + ((high - 0xD800) << 10) + low.saturating_sub(0xDC00);
    (
        char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER),
        11,
    )
}

/// Writes a string with its quotes and no escape that could be left out.
fn write_string(form: &mut String, string: &str) {
    form.push('"');
    let mut rest = string;
    while let Some(plain) = rest
        .bytes()
        .position(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\'))
    {
        let (before, special) = rest.split_at(plain);
        form.push_str(before);
        match special.bytes().next().unwrap_or_default() {
            b'"' => form.push_str("\\\""),
            b'\\' => form.push_str("\\\\"),
            0x08 => form.push_str("\\b"),
            0x0c => form.push_str("\\f"),
            b'\n' => form.push_str("\\n"),
            b'\r' => form.push_str("\\r"),
            b'\t' => form.push_str("\\t"),
            control => {
                // Writing to a string cannot fail.
                let _ = write!(form, "\\u{control:04x}");
            }
        }
        rest = special.get(1..).unwrap_or_default();
    }
    form.push_str(rest);
    form.push('"');
}

/// The power of ten of a number, as written; no digits mean 0.
#[derive(Clone, Copy, Debug, Default)]
struct Power<'a> {
    negative: bool,
    digits: &'a str,
}

/// Writes a number as sign, digits and power of ten; every zero is `0`.
fn write_number(form: &mut String, negative: bool, whole: &str, fraction: &str, power: Power<'_>) {
    let whole = whole.trim_start_matches('0');
    let digits = if whole.is_empty() {
        fraction.trim_start_matches('0')
    } else {
        fraction
    };
    if whole.is_empty() && digits.is_empty() {
        form.push('0');
        return;
    }
    if negative {
        form.push('-');
    }
    form.push_str(whole);
    form.push_str(digits);
    // The first digit is not 0, so this stops there.
    let zeros = form.len() - form.trim_end_matches('0').len();
    form.truncate(form.len() - zeros);

    let power = power.plus(zeros as i128 - fraction.len() as i128);
    if power != "0" {
        form.push('e');
        form.push_str(&power);
    }
}

impl Power<'_> {
    /// This power and `more`, in decimal. However many digits were written, the
    /// sum is exact, and as long as they are.
    fn plus(self, more: i128) -> String {
        /// Digits of which i128 holds any number, with room for a sum.
        const FIT: usize = 36;

        let digits = self.digits.trim_start_matches('0');
        if digits.len() <= FIT {
            let size = digits
                .bytes()
                .fold(0, |size, digit| size * 10 + i128::from(digit - b'0'));
            return (if self.negative {
                more - size
            } else {
                more + size
            })
            .to_string();
        }

        // The length of a text is far smaller than a number of so many digits,
        // so the sign stays.
        let mut carry = if self.negative { -more } else { more };
        let mut sum = Vec::with_capacity(digits.len() + 1);
        for digit in digits.bytes().rev() {
            carry += i128::from(digit - b'0');
            sum.push(
                char::from_digit(carry.rem_euclid(10).try_into().unwrap_or_default(), 10)
                    .unwrap_or('0'),
            );
            carry = carry.div_euclid(10);
        }
        if carry > 0 {
            sum.push('1');
        }
        let digits: String = sum
            .iter()
            .rev()
            .skip_while(|digit| **digit == '0')
            .collect();
        if self.negative {
            format!("-{digits}")
        } else {
            digits
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn refused(text: &str) -> (&'static str, String) {
        let error = check(text).unwrap_err();
        assert_eq!(canonical(text).unwrap_err().path, error.path, "{text}");
        (error.problem, error.path)
    }

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn what_is_json_passes() {
        for text in [
            "null",
            " true\r\n",
            "-0",
            "0.10",
            "1e400",
            "1E+2",
            "-1.5e-7",
            "\"\"",
            "\"\\ud83c\\udf89 \\u0000 \\/ 日本\u{7f}\"",
            "[]",
            "[ 1 , [ ] , { } ]",
            "{}",
            "{\"a\":{\"a\":1},\"b\":[{\"a\":1},{\"a\":2}],\"A\":0,\"\":0}",
            &nested(MAX_DEPTH),
            &format!("{}1{}", "{\"a\":".repeat(MAX_DEPTH), "}".repeat(MAX_DEPTH)),
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
            assert!(canonical(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            " ",
            "nul",
            "True",
            "tru e",
            "'a'",
            "\u{feff}1",
            "\u{a0}1",
            "01",
            "+1",
            ".5",
            "1.",
            "1e",
            "1e+",
            "-",
            "--1",
            "0x1",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "]",
            "{",
            "{1:2}",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,}",
            "{,}",
            "{\"a\" 1}",
            "{\"a\":1 \"b\":2}",
            "\"",
            "\"a",
            "\"\\",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "\"a\nb\"",
            "\"\u{1f}\"",
            "/**/1",
        ] {
            assert!(check(text).is_err(), "{text:?}");
            assert!(canonical(text).is_err(), "{text:?}");
        }
        assert_eq!(refused("{} {}"), ("has text after its end", "$".to_owned()));
        assert_eq!(refused("[1,2"), (CUT_SHORT, "$".to_owned()));
    }

    #[test]
    fn numbers_are_finite() {
        for text in ["NaN", "Infinity", "-Infinity", "-NaN"] {
            assert_eq!(refused(text), (NOT_FINITE, "$".to_owned()));
        }
        assert_eq!(
            refused("{\"a\":[1,NaN]}"),
            (NOT_FINITE, "$.a[1]".to_owned())
        );
    }

    #[test]
    fn a_key_stands_once_in_an_object() {
        assert_eq!(
            refused("{\"a\":1,\"b\":2,\"a\":3}"),
            (KEY_TWICE, "$.a".to_owned())
        );
        assert_eq!(
            refused("[{\"a\":{\"x y\":1,\"x\\u0020y\":1}}]"),
            (KEY_TWICE, "$[0].a[\"x y\"]".to_owned())
        );
        assert_eq!(
            refused("{\"\\ud83c\\udf89\":1,\"🎉\":1}"),
            (KEY_TWICE, "$[\"🎉\"]".to_owned())
        );

        let mut many: Vec<String> = (0..100)
            .map(|key| format!("\"{key}\":{{\"7\":0}}"))
            .collect();
        assert_eq!(check(&format!("{{{}}}", many.join(","))), Ok(()));
        many.push("\"\\u0037\":0".to_owned());
        assert_eq!(
            refused(&format!("{{{}}}", many.join(","))),
            (KEY_TWICE, "$.7".to_owned())
        );
    }

    #[test]
    fn surrogates_come_in_pairs() {
        for text in [
            "\"\\ud83c\"",
            "\"\\udf89\"",
            "\"\\udf89\\ud83c\"",
            "\"\\ud83c\\u0041\"",
            "\"\\ud83cudf89\"",
        ] {
            assert_eq!(refused(text), (LONE_SURROGATE, "$".to_owned()), "{text}");
        }
        assert!(check("{\"\\ud83c\":1}").is_err());
    }

    #[test]
    fn depth_is_limited_and_hostile_depth_harmless() {
        let (problem, path) = refused(&nested(MAX_DEPTH + 1));
        assert_eq!(problem, TOO_DEEP);
        assert!(path.len() <= MAX_PATH + '…'.len_utf8(), "{path}");
        assert!(check(&"[".repeat(1 << 20)).is_err());
        assert!(check(&"{\"a\":".repeat(1 << 20)).is_err());
    }

    #[test]
    fn an_error_says_where() {
        let error = check("{\"a\": [0, {\"b\": nope}]}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "needs a JSON value here (at $.a[1].b, byte 16)"
        );
    }

    #[test]
    fn objects_are_told_from_other_values() {
        assert_eq!(check_object(" \n{} "), Ok(()));
        assert_eq!(check_object(" []").unwrap_err().problem, NOT_AN_OBJECT);
        assert_eq!(check_object("").unwrap_err().problem, CUT_SHORT);
        assert_eq!(
            members("{ \"b\\n\" : [1, 2] , \"a\":1.0 }").unwrap(),
            [
                (Cow::Borrowed("b\n"), "[1, 2]"),
                (Cow::Borrowed("a"), "1.0")
            ]
        );
        assert_eq!(members("{}").unwrap(), []);
    }

    #[test]
    fn the_canonical_form_is_as_documented() {
        for (text, form) in [
            (
                " { \"b\" : [ 1 , 2.50 ] , \"a\" : null } ",
                "{\"a\":null,\"b\":[1,25e-1]}",
            ),
            (
                "{\"b\":{\"d\":1,\"c\":{}},\"a\":[{\"z\":1,\"y\":2}]}",
                "{\"a\":[{\"y\":2,\"z\":1}],\"b\":{\"c\":{},\"d\":1}}",
            ),
            (
                "{\"\u{ffff}\":1,\"🎉\":2,\"\":3}",
                "{\"\":3,\"\u{ffff}\":1,\"🎉\":2}",
            ),
            (
                "\"\\u0041\\/\\u00e9\\n\\u001f\\\"\\\\\\ud83c\\udf89\"",
                "\"A/é\\n\\u001f\\\"\\\\🎉\"",
            ),
            ("\"\\u000a\\u0008\\u000C\\t\\r\"", "\"\\n\\b\\f\\t\\r\""),
            ("100", "1e2"),
            ("1.0", "1"),
            ("1e0", "1"),
            ("0.001", "1e-3"),
            ("-0.0e5", "0"),
            ("-12.340e+1", "-1234e-1"),
            ("1e999999999", "1e999999999"),
            ("10e-1", "1"),
            ("1E00002", "1e2"),
        ] {
            assert_eq!(canonical(text).unwrap(), form, "{text}");
        }
    }

    #[test]
    fn numbers_compare_as_exact_decimals() {
        let same = |a: &str, b: &str| equal(Some(a), Some(b));
        assert!(same("1", "1.0") && same("1", "1e0") && same("-0", "0") && same("0e9", "0.00"));
        assert!(!same("9007199254740993", "9007199254740992"));
        assert!(!same("0.1", "0.1000000000000000055511151231257827"));
        assert!(same("1e400", "10E399") && !same("1e400", "1e401") && !same("1", "-1"));

        let nines = "9".repeat(60);
        let one = format!("1{}", "0".repeat(60));
        assert!(same(&format!("10e{nines}"), &format!("1e{one}")));
        assert!(same(&format!("0.1e{one}"), &format!("1e{nines}")));
        assert!(same(&format!("0.1e-{nines}"), &format!("1e-{one}")));
        assert!(same(&format!("10e-{one}"), &format!("1e-{nines}")));
        assert!(!same(&format!("1e{one}"), &format!("1e{nines}")));
    }

    #[test]
    fn absent_null_and_empty_arguments_are_one() {
        let forms = [None, Some("null"), Some(" null "), Some("{}"), Some("{ }")];
        for (a, b) in forms.iter().flat_map(|a| forms.map(|b| (*a, b))) {
            assert!(equal(a, b), "{a:?} {b:?}");
            assert_eq!(action_digest("t", a), action_digest("t", b));
        }
        for other in ["[]", "0", "false", "\"\"", "{\"a\":null}"] {
            assert!(!equal(None, Some(other)), "{other}");
        }
        assert!(!equal(Some("{\"a\":null}"), Some("{}")));
    }

    #[test]
    fn a_text_that_is_not_json_equals_itself_only() {
        assert!(equal(Some("{nope"), Some("{nope")));
        assert!(!equal(Some("{nope"), Some("{nope ")));
        assert!(!equal(Some("{nope"), None));
    }

    #[test]
    fn a_digest_parts_tool_from_arguments_and_is_stable() {
        assert_ne!(action_digest("a", Some("1")), action_digest("a1", None));
        assert_ne!(action_digest("a", None), action_digest("b", None));
        assert_ne!(
            action_digest("a", Some("1")),
            action_digest("a", Some("true"))
        );
        assert_eq!(
            action_digest_hex("publish", Some("{\"text\": \"prod\"}")),
            "da9d46bb5fa67c5e227dfd81eb0816b1aabbf93a752ebb69c4f9c78c7f07a35c"
        );
    }

    /// Any JSON value; numbers as the texts of 64-bit integers and of decimals.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1000i32..1000).prop_map(|n| Value::from(f64::from(n) / 8.0)),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..20)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// The same value written differently.
    fn respell(value: &Value, text: &mut String) {
        match value {
            Value::Null | Value::Bool(_) => text.push_str(&value.to_string()),
            Value::Number(number) if number.is_f64() => {
                let _ = write!(
                    text,
                    "{}00E+0",
                    number.as_f64().map(|n| format!("{n:.3}")).unwrap()
                );
            }
            Value::Number(number) => {
                let _ = write!(text, "{number}.0");
            }
            Value::String(string) => {
                text.push('"');
                for unit in string.encode_utf16() {
                    let _ = write!(text, "\\u{unit:04X}");
                }
                text.push('"');
            }
            Value::Array(values) => {
                text.push('[');
                for (at, value) in values.iter().enumerate() {
                    text.push_str(if at > 0 { " ,\n" } else { " " });
                    respell(value, text);
                }
                text.push(']');
            }
            Value::Object(members) => {
                text.push('{');
                for (at, (key, value)) in members.iter().rev().enumerate() {
                    text.push_str(if at > 0 { "\t, " } else { "" });
                    respell(&Value::from(key.as_str()), text);
                    text.push(':');
                    respell(value, text);
                }
                text.push('}');
            }
        }
    }

    proptest! {
        #[test]
        fn spelling_does_not_matter(value in value()) {
            let plain = value.to_string();
            let mut other = String::new();
            respell(&value, &mut other);
            prop_assert_eq!(check(&plain), Ok(()));
            prop_assert_eq!(check(&other), Ok(()));
            prop_assert_eq!(canonical(&plain), canonical(&other));
        }

        #[test]
        fn the_canonical_form_is_its_own(value in value()) {
            let form = canonical(&value.to_string()).unwrap();
            prop_assert_eq!(canonical(&form).unwrap(), form.clone());
            prop_assert!(serde_json::from_str::<Value>(&form).is_ok());
        }

        #[test]
        fn different_values_differ(a in value(), b in value()) {
            prop_assert_eq!(canonical(&a.to_string()) == canonical(&b.to_string()), a == b);
        }

        #[test]
        fn strings_come_back(string: String) {
            let mut text = String::new();
            respell(&Value::from(string.as_str()), &mut text);
            prop_assert_eq!(serde_json::from_str::<String>(&canonical(&text).unwrap()).unwrap(), string);
        }

        #[test]
        fn no_text_is_kept_that_another_reader_refuses(value in value(), at: prop::sample::Index, with in "[\"\\\\{}\\[\\],:0-9eE+.a-zNI -]?") {
            let mut text = value.to_string();
            let at = text.floor_char_boundary(at.index(text.len()));
            let end = text.ceil_char_boundary(at + 1);
            text.replace_range(at..end, &with);
            let other = serde_json::from_str::<serde::de::IgnoredAny>(&text);
            match check(&text) {
                Ok(()) => prop_assert!(other.is_ok(), "{}", text),
                Err(error) => prop_assert!(
                    other.is_err() || [KEY_TWICE, LONE_SURROGATE, TOO_DEEP].contains(&error.problem),
                    "{} {}", text, error
                ),
            }
        }

        #[test]
        fn any_text_is_answered(text: String) {
            prop_assert_eq!(check(&text).err(), canonical(&text).err());
        }

        #[test]
        fn decimals_shift_exactly(digits in "[1-9][0-9]{0,60}", power in -80i64..80, zeros in 0usize..80) {
            let plain = format!("{digits}e{power}");
            let shifted = format!("{digits}{}e{}", "0".repeat(zeros), power - i64::try_from(zeros).unwrap());
            let fraction = format!("0.{}{digits}e{}", "0".repeat(zeros), power + i64::try_from(zeros + digits.len()).unwrap());
            prop_assert!(equal(Some(&plain), Some(&shifted)));
            prop_assert!(equal(Some(&plain), Some(&fraction)));
        }
    }
}
