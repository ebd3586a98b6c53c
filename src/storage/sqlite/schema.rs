//! The schema of the database file, and the way to it from older ones.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::errors::sort;
use crate::storage::{Error, Identity, Result};

/// Every migration, in order. The schema version is how many were applied.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_initial.sql")];

/// Tells our files from those of other programs: "Adjo".
const APPLICATION_ID: i32 = 0x4164_6a6f;

/// Refuses a file that another program made, before anything is written to it.
pub(super) fn check_owner(connection: &Connection) -> Result<()> {
    let (id, tables): (i32, i64) = connection
        .query_row(
            "SELECT application_id, (SELECT count(*) FROM sqlite_schema)
             FROM pragma_application_id",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .map_err(sort)?;
    if id == APPLICATION_ID || (id == 0 && tables == 0) {
        return Ok(());
    }
    Err(Error::Internal(
        "the file is a database of another program; use another file".into(),
    ))
}

/// Brings the schema up to date and reads who the store is.
pub(super) fn prepare(connection: &mut Connection) -> Result<Identity> {
    let version: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(sort)?;
    let Some(missing) = usize::try_from(version)
        .ok()
        .and_then(|version| MIGRATIONS.get(version..))
    else {
        return Err(Error::Internal(format!(
            "the database has schema {version}, and this program knows {}; use a newer program",
            MIGRATIONS.len()
        )));
    };
    for (number, migration) in (version + 1..).zip(missing) {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sort)?;
        transaction.execute_batch(migration).map_err(sort)?;
        transaction
            .pragma_update(None, "user_version", number)
            .and_then(|()| transaction.pragma_update(None, "application_id", APPLICATION_ID))
            .map_err(sort)?;
        transaction.commit().map_err(sort)?;
    }
    identity(connection)
}

fn identity(connection: &mut Connection) -> Result<Identity> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(sort)?;
    let read = |name: &str| -> Result<Option<Vec<u8>>> {
        transaction
            .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| {
                row.get(0)
            })
            .optional()
            .map_err(sort)
    };
    let identity = match (read("epoch")?, read("secret")?) {
        (Some(epoch), Some(secret)) => {
            let wrong = |_| Error::Internal("the store's identity has the wrong length".into());
            Identity {
                epoch: epoch.try_into().map_err(wrong)?,
                secret: secret.try_into().map_err(wrong)?,
            }
        }
        (None, None) => {
            let identity = Identity::random()?;
            for (name, value) in [
                ("epoch", identity.epoch.as_slice()),
                ("secret", identity.secret.as_slice()),
            ] {
                transaction
                    .execute(
                        "INSERT INTO meta (name, value) VALUES (?1, ?2)",
                        (name, value),
                    )
                    .map_err(sort)?;
            }
            identity
        }
        _ => return Err(Error::Internal("the store's identity is incomplete".into())),
    };
    transaction.commit().map_err(sort)?;
    Ok(identity)
}
