package pg

// TimelineSQL returns the system identifier and the timeline of a primary, and no row on a standby. A
// failover or a recovery to a point in time begins a new timeline.
const TimelineSQL = `SELECT system_identifier || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
	FROM pg_control_system() WHERE NOT pg_is_in_recovery()`

// EarlierTimeline reports whether timeline a is earlier than b of the same system. Both are results of
// TimelineSQL, which end in a timeline of eight hexadecimal digits.
func EarlierTimeline(a, b string) bool {
	i := len(a) - 8
	return i > 0 && len(a) == len(b) && a[:i] == b[:i] && a[i:] < b[i:]
}

// Replaced is a driver's error for a primary with an earlier timeline than another primary that the driver
// has connected to.
const Replaced = "the server was replaced: another one of the same system has a later timeline; if this " +
	"one is to be used again, restart this process"
