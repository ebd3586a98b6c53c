//! Settings: flags, `ADJOURN_*` variables, and a TOML file.
