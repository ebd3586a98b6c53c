-- The first schema. Tables of rows that are written once are rowid tables, so
-- that new rows go to the end; their indexes are narrow.

-- What makes the store itself: schema version, epoch, secret.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Tenants by number, so that the other tables need not repeat the name.
CREATE TABLE tenants (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- Every version of every record, in commit order: the current state, the past
-- and the change feed. `chain` is the feed's hash chain up to the row.
CREATE TABLE versions (
    id       INTEGER PRIMARY KEY,
    tenant   INTEGER NOT NULL,
    kind     INTEGER NOT NULL,
    key      BLOB NOT NULL,
    revision INTEGER NOT NULL,
    at       INTEGER NOT NULL, -- microseconds since the epoch
    body     BLOB NOT NULL,    -- JSON
    digest   BLOB NOT NULL,
    chain    BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX versions_by_key ON versions (tenant, kind, key, revision);
CREATE INDEX versions_by_revision ON versions (tenant, revision);

CREATE TRIGGER versions_are_written_once BEFORE UPDATE ON versions
BEGIN SELECT RAISE(ABORT, 'versions are written once'); END;
-- 8 is the kind of timeline entries.
CREATE TRIGGER timelines_are_kept BEFORE DELETE ON versions WHEN OLD.kind = 8
BEGIN SELECT RAISE(ABORT, 'timeline entries are never deleted'); END;
CREATE TRIGGER timeline_entries_are_written_once BEFORE INSERT ON versions
WHEN NEW.kind = 8 AND EXISTS (
    SELECT 1 FROM versions WHERE tenant = NEW.tenant AND kind = NEW.kind AND key = NEW.key
)
BEGIN SELECT RAISE(ABORT, 'timeline entries are written once'); END;

-- Where current records are found in another order than that of their keys.
CREATE TABLE places (
    tenant   INTEGER NOT NULL,
    ordering INTEGER NOT NULL,
    place    BLOB NOT NULL,
    key      BLOB NOT NULL,
    PRIMARY KEY (tenant, ordering, place, key)
) STRICT, WITHOUT ROWID;

-- Items, cells and nodes of logs.
CREATE TABLE log_rows (
    id     INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    log    BLOB NOT NULL,
    class  INTEGER NOT NULL,
    number INTEGER NOT NULL,
    origin INTEGER NOT NULL,
    at     INTEGER NOT NULL, -- microseconds since the epoch
    body   BLOB NOT NULL,    -- JSON, or a value as it was sent
    digest BLOB NOT NULL,
    chain  BLOB NOT NULL,
    mark   BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX log_rows_by_place ON log_rows (tenant, log, class, number);

CREATE TRIGGER log_rows_are_written_once BEFORE UPDATE ON log_rows
BEGIN SELECT RAISE(ABORT, 'log rows are written once'); END;

-- What idempotency keys were used for.
CREATE TABLE requests (
    id       INTEGER PRIMARY KEY,
    tenant   INTEGER NOT NULL,
    key      BLOB NOT NULL,
    revision INTEGER NOT NULL,
    at       INTEGER NOT NULL, -- microseconds since the epoch
    body     BLOB NOT NULL,    -- JSON
    digest   BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX requests_by_key ON requests (tenant, key);
