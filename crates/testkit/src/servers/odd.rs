//! Settings that users have and no stock server has: the odd world of `./dev test --servers odd`.
//!
//! | MySQL | MariaDB |
//! |---|---|
//! | `TZ` of the process: Tokyo | Berlin |
//! | `sql_mode`, `autocommit`, `auto_increment_increment`, `auto_increment_offset` | the same |
//! | `character_set_server`, `lower_case_table_names` | the same |
//! | `innodb_lock_wait_timeout`, `wait_timeout`, `max_allowed_packet` | the same |
//! | `sql_require_primary_key` | `innodb_force_primary_key` |
//! | `gtid_mode`, `enforce_gtid_consistency` | `gtid_strict_mode`: GTIDs themselves cannot be switched off |

use std::path::Path;

use anyhow::{Result, ensure};

use super::Flavor;

const COMMON: [&str; 9] = [
    "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL,PIPES_AS_CONCAT",
    "--autocommit=0",
    "--auto-increment-increment=3",
    "--auto-increment-offset=2",
    "--character-set-server=latin1",
    "--lower-case-table-names=1",
    "--innodb-lock-wait-timeout=1",
    "--wait-timeout=10",
    "--max-allowed-packet=4M",
];
const MYSQL: [&str; 3] = ["--sql-require-primary-key=ON", "--enforce-gtid-consistency=ON", "--gtid-mode=ON"];
const MARIADB: [&str; 2] = ["--innodb-force-primary-key=ON", "--gtid-strict-mode=ON"];

/// The zone of the odd world. The stock one of `./dev test` is in Newfoundland, half an hour off.
pub(super) const fn zone(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::MySql => "Asia/Tokyo",
        Flavor::MariaDb => "Europe/Berlin",
    }
}

/// The arguments of the odd world.
pub(super) fn args(flavor: Flavor) -> impl Iterator<Item = &'static str> {
    let own = match flavor {
        Flavor::MySql => MYSQL.as_slice(),
        Flavor::MariaDb => MARIADB.as_slice(),
    };
    COMMON.iter().chain(own).copied()
}

/// The zones of the tests as rules. A machine without the package tzdata silently takes a zone's name for UTC.
const RULES: [(&str, &str); 3] = [
    ("Asia/Tokyo", "JST-9"),
    ("Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"),
    ("America/St_Johns", "NST3:30NDT,M3.2.0,M11.1.0"),
];

/// The value of `TZ` for a zone.
pub(super) fn tz(zone: &str) -> Result<String> {
    if let Some((_, rule)) = RULES.iter().find(|(name, _)| *name == zone) {
        return Ok((*rule).to_owned());
    }
    let file = Path::new("/usr/share/zoneinfo").join(zone);
    ensure!(file.is_file(), "no rule for the zone {zone}, and {} does not exist: install tzdata", file.display());
    Ok(zone.to_owned())
}

#[cfg(test)]
mod tests {
    use super::tz;

    #[test]
    fn a_zone_is_a_rule_or_needs_tzdata() {
        assert_eq!(tz("Asia/Tokyo").unwrap(), "JST-9");
        assert!(tz("Nowhere/Atlantis").unwrap_err().to_string().contains("install tzdata"));
    }
}
