package policy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// poller finds out what has been changed, see pollSQL. It is used by one goroutine at a time.
type poller struct {
	db postgres.DB

	// snapshot is the server's snapshot at the last successful poll. If it is "", the next poll
	// says that everything has changed.
	snapshot string
	// server identifies the server and the log of changes, since a snapshot means something only
	// there. It has the system identifier, the timeline (a failover and a restore change it),
	// and the start of the server (a crash before it may have lost the last transactions). It
	// also has the database and the table: a table that was made again has other numbers.
	server string
}

// maxChanges is how many changes are looked at one by one. A poll that finds more says that
// everything has changed.
const maxChanges = 1000

// pollSQL returns what has become visible since the snapshot $1, which is that of the poll
// before, with the snapshot of this statement in the first row.
//
// A transaction has become visible if it began between the two snapshots (its number is at least
// xmax of the old snapshot, and below xmax of the new one), or if it was under way at the old
// snapshot (it is in xip). The server itself returns only rows of transactions that have
// committed. A sequence number would not do: transactions become visible in another order than
// they write. One statement has one snapshot, so that no change falls between two polls and none
// is seen twice. UNION ALL instead of OR lets both halves use the index.
const pollSQL = `WITH head AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT 'head', h.snapshot::text, coalesce((SELECT max(seq) FROM rate_limit_changes), 0)::text, pg_is_in_recovery()::text FROM head h
UNION ALL
(SELECT c.kind, c.ref, c.seq::text, (c.ref IS NULL)::text FROM (
	SELECT kind, ref, seq FROM rate_limit_changes
	WHERE xid >= pg_snapshot_xmax($1::text::pg_snapshot) AND xid < pg_snapshot_xmax((SELECT snapshot FROM head))
	UNION ALL
	SELECT kind, ref, seq FROM rate_limit_changes WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
) c LIMIT 1001)`

// serverSQL identifies the server, see poller. It fails if the server does not have these
// functions, or if the role may not call them. A failover is then noticed when the rules are
// read anew.
const serverSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END
	|| ' ' || (SELECT system_identifier FROM pg_control_system()) || ' ' || pg_postmaster_start_time()
	|| ' ' || current_database() || ' ' || 'rate_limit_changes'::regclass::oid`

// changes is what a poll has found.
type changes struct {
	everything bool // rules, bans and identities
	rules      bool
	bans       bool     // of networks
	identities bool     // all of them
	users      []string // identities of these users
	digests    []string // identities of these API keys, as hexadecimal digests
	lines      []int64  // the numbers of the changes, in no order; none with everything
	applied    int64    // the highest number of a change that is visible
}

// errStandby is the error of a poll of a server that only replays another one.
var errStandby = errors.New("the server is a standby, must be the primary (target_session_attrs=read-write in the DSN): a standby does not tell which transactions are under way")

// poll returns what has become visible since the last poll that returned no error. After a
// failed poll the next one returns that as well.
func (p *poller) poll(ctx context.Context) (changes, error) {
	statement := &postgres.Statement{SQL: pollSQL, Args: []any{p.snapshot}}
	if p.snapshot == "" {
		statement.Args[0] = nil
	}
	server := &postgres.Statement{SQL: serverSQL}
	if err := p.db.Run(ctx, []*postgres.Statement{server, statement}); err != nil {
		return changes{}, unavailable(err)
	}
	if statement.Err != nil {
		return changes{}, fmt.Errorf("reading the changes: %w", statement.Err)
	}
	rows, err := texts(statement, 4)
	if err != nil {
		return changes{}, fmt.Errorf("reading the changes: %w", err)
	}
	identity := ""
	if server.Err == nil {
		if columns, err := texts(server, 1); err == nil && len(columns) == 1 {
			identity = columns[0]
		}
	}
	head := 0
	for head < len(rows) && rows[head] != "head" {
		head += 4
	}
	if head == len(rows) {
		return changes{}, fmt.Errorf("reading the changes: %w", errColumns)
	}
	if rows[head+3] == "true" {
		p.snapshot = ""
		return changes{}, errStandby
	}
	var found changes
	found.applied, err = strconv.ParseInt(rows[head+2], 10, 64)
	if err != nil {
		return changes{}, fmt.Errorf("reading the changes: %w", err)
	}
	found.everything = p.snapshot == "" || identity != p.server || len(rows)/4-1 > maxChanges
	p.snapshot = rows[head+1]
	p.server = identity
	for i := 0; i < len(rows) && !found.everything; i += 4 {
		if i != head {
			line, err := strconv.ParseInt(rows[i+2], 10, 64)
			if err != nil {
				return changes{everything: true, applied: found.applied}, nil
			}
			found.lines = append(found.lines, line)
			found.add(rows[i], rows[i+1], rows[i+3] == "true")
		}
	}
	return found, nil
}

// add adds a line of the log. all is a line about all rows of a table.
func (c *changes) add(kind, ref string, all bool) {
	switch kind {
	case "tier", "rule", "limit":
		c.rules = true
		return
	case "pause": // see postgres.Store.Paused
		return
	case "user":
		c.identities = c.identities || all
		c.users = append(c.users, ref)
		return
	case "key":
		c.identities = c.identities || all
		c.digests = append(c.digests, ref)
		return
	}
	// An override or a ban: ref says what it is for.
	of := strings.SplitN(ref, "/", 2)
	switch {
	case !all && of[0] == "tier":
		c.rules = true
	case !all && of[0] == "network":
		c.bans = true
	case !all && of[0] == "user" && len(of) == 2:
		c.users = append(c.users, of[1])
	case !all && of[0] == "key" && len(of) == 2:
		c.digests = append(c.digests, of[1])
	default:
		c.identities = true
		c.rules = c.rules || kind != "ban"
		c.bans = c.bans || kind != "override"
	}
}
