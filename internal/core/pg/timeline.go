package pg

// TimelineSQL returns the system identifier and the timeline of a primary. A failover, or a recovery to
// a point in time, begins a new timeline. On a standby it returns no row.
const TimelineSQL = `SELECT system_identifier || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
	FROM pg_control_system() WHERE NOT pg_is_in_recovery()`

// EarlierTimeline reports whether timeline a is earlier than b of the same system. Both are results of
// TimelineSQL, which end in a timeline of eight hexadecimal digits.
func EarlierTimeline(a, b string) bool {
	at := len(a) - 8
	return at > 0 && len(a) == len(b) && a[:at] == b[:at] && a[at:] < b[at:]
}

// Replaced is the error of a driver that connects to a primary with an earlier timeline than one that
// it has seen.
const Replaced = "the server was replaced: another one of the same system has a later timeline; if this " +
	"one is to be used again, restart this process"
