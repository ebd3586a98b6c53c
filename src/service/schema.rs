//! JSON Schema: whether one makes sense, and whether a value fits it.
//!
//! Agents write schemas, and one can be made slow. So this runs before an operation,
//! never in it, fetches nothing, and matches patterns in linear time.

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::domain::error::{Error, Reason, Result};

/// How long a schema may be, in bytes.
const MAX_SCHEMA: usize = 64 * 1024;

/// Checks that a text is a schema that values can be checked against here.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::LimitExceeded`], naming `field`.
pub fn check_schema(field: &str, schema: &str) -> Result<()> {
    if schema.len() > MAX_SCHEMA {
        return Err(Error::new(
            Reason::LimitExceeded,
            format!("{field}: a schema is at most 64 KiB"),
        )
        .at(field)
        .with("limit", MAX_SCHEMA));
    }
    compile(schema)
        .map(drop)
        .map_err(|problem| Error::argument(field, format!("is no usable JSON Schema: {problem}")))
}

/// Checks that a value fits a schema.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], naming `field` and where in the value the fault is,
/// never the value.
pub fn check_value(field: &str, schema: &str, value: &str) -> Result<()> {
    let validator = compile(schema).map_err(|problem| {
        Error::argument(
            field,
            format!("cannot be checked, for the schema is not usable: {problem}"),
        )
    })?;
    let value: Value =
        serde_json::from_str(value).map_err(|error| Error::argument(field, error))?;
    let Err(fault) = validator.validate(&value) else {
        return Ok(());
    };
    let at = fault.instance_path().to_string();
    let place = if at.is_empty() { "/" } else { &at };
    Err(Error::argument(
        field,
        format!("does not fit the schema at {place}: {}", fault.masked()),
    ))
}

fn compile(schema: &str) -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err("it must be an object, true or false".to_owned());
    }
    jsonschema::options()
        .offline()
        .with_pattern_options(PatternOptions::regex())
        .build(&schema)
        .map_err(|error| error.masked().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEATS: &str = r#"{
        "type": "object",
        "properties": {"seats": {"type": "integer", "minimum": 1}, "name": {"pattern": "^[a-z]+$"}},
        "required": ["seats"],
        "additionalProperties": false
    }"#;

    #[test]
    fn a_value_has_to_fit() {
        assert_eq!(
            check_value("v", SEATS, r#"{"seats": 2, "name": "ab"}"#),
            Ok(())
        );
        for wrong in [
            "{}",
            "[]",
            r#"{"seats": "2"}"#,
            r#"{"seats": 0}"#,
            r#"{"seats": 1, "more": 1}"#,
            r#"{"seats": 1, "name": "A"}"#,
        ] {
            let refused = check_value("v", SEATS, wrong).unwrap_err();
            assert_eq!(refused.reason, Reason::ArgumentInvalid, "{wrong}");
            assert_eq!(refused.field.as_deref(), Some("v"));
        }
    }

    #[test]
    fn a_refusal_tells_where_but_not_what() {
        let refused = check_value("v", SEATS, r#"{"seats": "secret"}"#).unwrap_err();
        assert!(refused.message.contains("/seats"), "{refused}");
        assert!(!refused.message.contains("secret"), "{refused}");
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        assert_eq!(check_schema("s", SEATS), Ok(()));
        assert_eq!(check_schema("s", "true"), Ok(()));
        for wrong in [
            "1",
            "{",
            r#"{"type": "nothing"}"#,
            r#"{"pattern": "("}"#,
            r#"{"$ref": "https://example.com/schema.json"}"#,
            r#"{"$ref": "file:///etc/passwd"}"#,
        ] {
            assert!(check_schema("s", wrong).is_err(), "{wrong}");
        }
        let long = format!(r#"{{"title": "{}"}}"#, "x".repeat(MAX_SCHEMA));
        let refused = check_schema("s", &long).unwrap_err();
        assert_eq!(refused.reason, Reason::LimitExceeded);
    }
}
